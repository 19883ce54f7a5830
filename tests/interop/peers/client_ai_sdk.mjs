// The MCP client of Vercel's AI SDK, without a model. It is built without the official SDK.
import { createMCPClient } from "@ai-sdk/mcp";
import { Experimental_StdioMCPTransport } from "@ai-sdk/mcp/mcp-stdio";
import { ADA, ADDENDS, STATIC, args, command, found, url } from "./client_script.mjs";

const transport = url ? { type: "http", url } : new Experimental_StdioMCPTransport({ command, args });
const client = await createMCPClient({ transport });
const tools = await client.tools();
const called = await tools.add.execute(ADDENDS, { messages: [], toolCallId: "1" });
const read = await client.readResource({ uri: STATIC });
const prompt = await client.experimental_getPrompt({ name: "greet", arguments: ADA });
found(Object.keys(tools), called.content[0].text, {
  resource: read.contents[0].text,
  prompt: prompt.messages[0].content.text,
});
await client.close();
