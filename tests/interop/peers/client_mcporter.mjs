// mcporter, which calls tools for programs and scripts.
import { createRuntime } from "mcporter";
import { ADDENDS, PATIENCE, STATIC, args, command, found, url } from "./client_script.mjs";

const reached = url ? { kind: "http", url: new URL(url) } : { kind: "stdio", command, args, cwd: process.cwd() };
const runtime = await createRuntime({ servers: [{ name: "peer", command: reached }] });
const tools = await runtime.listTools("peer");
const called = await runtime.callTool("peer", "add", { args: ADDENDS, timeoutMs: PATIENCE * 1000 });
const read = await runtime.readResource("peer", STATIC);
found(
  tools.map((tool) => tool.name),
  called.content[0].text,
  { resource: read.contents[0].text },
);
await runtime.close();
