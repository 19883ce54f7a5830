// npm's mcp-client, a thin layer on the official SDK.
import { MCPClient } from "mcp-client";
import { ADA, ADDENDS, STATIC, args, command, found, url } from "./client_script.mjs";

const client = new MCPClient({ name: "peer", version: "1.0.0" });
await client.connect(url ? { type: "httpStream", url } : { type: "stdio", command, args, env: process.env });
const tools = await client.getAllTools();
const called = await client.callTool({ name: "add", arguments: ADDENDS });
const read = await client.getResource({ uri: STATIC });
const prompt = await client.getPrompt({ name: "greet", arguments: ADA });
found(
  tools.map((tool) => tool.name),
  called.content[0].text,
  { resource: read.contents[0].text, prompt: prompt.messages[0].content.text },
);
await client.close();
