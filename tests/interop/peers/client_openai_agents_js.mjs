// The servers of the OpenAI Agents SDK for JavaScript, without a model.
import { MCPServerStdio, MCPServerStreamableHttp } from "@openai/agents";
import { ADDENDS, PATIENCE, STATIC, args, command, found, url } from "./client_script.mjs";

const patient = { clientSessionTimeoutSeconds: PATIENCE, timeout: PATIENCE * 1000 };
const server = url
  ? new MCPServerStreamableHttp({ url, ...patient })
  : new MCPServerStdio({ command, args, ...patient });
await server.connect();
const tools = await server.listTools();
const [called] = await server.callTool("add", ADDENDS);
const read = await server.readResource(STATIC);
found(
  tools.map((tool) => tool.name),
  called.text,
  { resource: read.contents[0].text },
);
await server.close();
