// The client of the official TypeScript SDK, versions 1.x from the first with Streamable HTTP on.
// If BRIDGE is set, it is a command that is given an address, and speaks stdio for the server there.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { ADA, ADDENDS, STATIC, args, command, found, url } from "./client_script.mjs";

const bridge = process.env.BRIDGE;
const server = bridge ? { command: bridge, args: [url], env: process.env } : { command, args };
const client = new Client({ name: "peer", version: "1.0.0" });
await client.connect(
  url && !bridge ? new StreamableHTTPClientTransport(new URL(url)) : new StdioClientTransport(server),
);
const { tools } = await client.listTools();
const called = await client.callTool({ name: "add", arguments: ADDENDS });
const read = await client.readResource({ uri: STATIC });
const prompt = await client.getPrompt({ name: "greet", arguments: ADA });
found(
  tools.map((tool) => tool.name),
  called.content[0].text,
  { resource: read.contents[0].text, prompt: prompt.messages[0].content.text },
);
await client.close();
