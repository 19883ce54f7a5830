// A server on npm's fastmcp, with one of everything.
//
//   node fastmcp_server.mjs [PORT]
//
// It is copied into the folder of a test, beside the packages that it imports.
import { FastMCP } from "fastmcp";
import { z } from "zod";

const server = new FastMCP({ name: "fish", version: "1.0.0" });
server.addTool({
  name: "multiply",
  description: "Multiply two numbers.",
  parameters: z.object({ a: z.number(), b: z.number() }),
  execute: async ({ a, b }) => String(a * b),
});
server.addResource({
  uri: "fish://trout",
  name: "trout",
  mimeType: "text/plain",
  load: async () => ({ text: "The trout swims." }),
});
server.addPrompt({
  name: "describe",
  arguments: [{ name: "name", required: true }],
  load: async ({ name }) => `Describe the ${name}.`,
});
const port = Number(process.argv[2]);
await server.start(
  port ? { transportType: "httpStream", httpStream: { port, host: "127.0.0.1" } } : { transportType: "stdio" },
);
