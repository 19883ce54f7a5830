// The official TypeScript client, measured: node typescript_client.mjs NPM_FOLDER stdio PYTHON RAW_SERVER
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const [folder, , python, ...script] = process.argv.slice(2);
const require = createRequire(pathToFileURL(`${folder}/`));
const { Client } = await import(pathToFileURL(require.resolve("@modelcontextprotocol/sdk/client/index.js")));
const { StdioClientTransport } = await import(pathToFileURL(require.resolve("@modelcontextprotocol/sdk/client/stdio.js")));

const client = new Client({ name: "bench", version: "0" });
await client.connect(new StdioClientTransport({ command: python, args: script }));
await client.listTools();

/** Calls, one after the other, with every answer checked. */
async function calls(first, count) {
  for (let number = first; number < first + count; number += 1) {
    const text = `hello ${number}`;
    const result = await client.callTool({ name: "echo", arguments: { text } });
    if (result.structuredContent.result !== text) throw new Error(`a wrong answer to ${text}`);
  }
}

let number = 0;
for await (const line of createInterface({ input: process.stdin })) {
  const [count, window] = line.split(" ").map(Number);
  const share = Math.floor(count / window);
  await Promise.all(Array.from({ length: window }, (_, one) => calls(number + one * share, share)));
  number += count;
  console.log("done");
}
await client.close();
