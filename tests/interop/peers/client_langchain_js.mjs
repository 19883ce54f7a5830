// LangChain.js: its tools, made of those of a server.
import { MultiServerMCPClient } from "@langchain/mcp-adapters";
import { ADDENDS, STATIC, args, command, found, url } from "./client_script.mjs";

const client = new MultiServerMCPClient({ peer: url ? { url } : { transport: "stdio", command, args } });
const tools = await client.getTools();
const called = await tools.find((tool) => tool.name === "add").invoke(ADDENDS);
const [read] = await client.readResource("peer", STATIC);
found(
  tools.map((tool) => tool.name),
  called.text,
  { resource: read.text },
);
await client.close();
