// The official TypeScript server, told to tell: node typescript_server.mjs NPM_FOLDER http PORT
import { randomUUID } from "node:crypto";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [folder, , port] = process.argv.slice(2);
const require = createRequire(pathToFileURL(`${folder}/`));
const load = (name) => import(pathToFileURL(require.resolve(name)));
const { McpServer, WebStandardStreamableHTTPServerTransport } = await load("@modelcontextprotocol/server");
const { getRequestListener } = await load("@hono/node-server");
const { z } = await load("zod");

const transports = new Map();
const subscribers = new Map();

/** Tells everybody who is subscribed. */
async function touch(uri) {
  await Promise.all([...(subscribers.get(uri) ?? [])].map((server) => server.server.sendResourceUpdated({ uri })));
}

/** A server for one session. */
function serve() {
  const server = new McpServer(
    { name: "bench", version: "0" },
    { capabilities: { tools: {}, resources: { subscribe: true } } },
  );
  server.registerTool("touch", { inputSchema: z.object({ text: z.string() }) }, async ({ text }) => {
    await touch(text);
    return { content: [{ type: "text", text: "ok" }] };
  });
  server.server.setRequestHandler("resources/subscribe", async ({ params }) => {
    if (!subscribers.has(params.uri)) subscribers.set(params.uri, new Set());
    subscribers.get(params.uri).add(server);
    return {};
  });
  return server;
}

async function handle(request) {
  const id = request.headers.get("mcp-session-id");
  if (id !== null) return transports.get(id).handleRequest(request);
  const transport = new WebStandardStreamableHTTPServerTransport({
    sessionIdGenerator: randomUUID,
    onsessioninitialized: (made) => transports.set(made, transport),
  });
  await serve().connect(transport);
  return transport.handleRequest(request);
}

createServer(getRequestListener(handle)).listen(Number(port), "127.0.0.1");
