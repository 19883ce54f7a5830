// Everything that a server can offer in the modern era, by the official TypeScript SDK (2.x): a peer for our client.
//
//   node ts_server.mjs <npm folder> [--bare] [--http]
//
// With --bare, nothing is offered. Over HTTP it takes any free port; the endpoint is any path.
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { resolve } from "node:path";
import { Readable } from "node:stream";
import { Offer } from "./ts_catalog.mjs";

const require = createRequire(resolve(process.argv[2], "package.json")); // the npm folder that the SDK is installed in
const { ProtocolError, Server, createMcpHandler } = require("@modelcontextprotocol/server");
const { serveStdio } = require("@modelcontextprotocol/server/stdio");

const INVALID_PARAMS = -32602;
const CHANGES = { tools: "ToolList", resources: "ResourceList", prompts: "PromptList" };
const offer = new Offer((message) => new ProtocolError(INVALID_PARAMS, message));

/** A server with a handler for each method. */
function everything() {
  const listed = { listChanged: true };
  const capabilities = {
    tools: listed,
    resources: { ...listed, subscribe: true },
    prompts: listed,
    completions: {},
    logging: {},
  };
  const server = new Server({ name: "everything", version: "1.0" }, { capabilities, instructions: "Try everything." });
  const handlers = {
    "tools/list": ({ params }) => offer.tools(params?.cursor),
    "tools/call": ({ params }, { mcpReq }) => offer.call(params.name, params.arguments ?? {}, mcpReq),
    "resources/list": ({ params }) => offer.resources(params?.cursor),
    "resources/templates/list": () => offer.templates(),
    "resources/read": ({ params }) => offer.read(params.uri),
    "prompts/list": ({ params }) => offer.prompts(params?.cursor),
    "prompts/get": ({ params }) => offer.prompt(params.name, params.arguments),
    "completion/complete": ({ params }) => offer.complete(params),
  };
  for (const [method, handler] of Object.entries(handlers)) server.setRequestHandler(method, handler);
  return server;
}

const bare = () => new Server({ name: "everything", version: "1.0" }, { capabilities: {} });
const made = process.argv.includes("--bare") ? bare : everything;

/** Serves stdin and stdout; what has changed is said on the one connection there is. */
function converse() {
  let server;
  offer.changed = (kind) => server[`send${CHANGES[kind]}Changed`]();
  offer.updated = (uri) => server.sendResourceUpdated({ uri });
  serveStdio(() => (server = made()));
}

/** Serves HTTP; what has changed is said to whoever listens. */
function listen() {
  const handler = createMcpHandler(made);
  offer.changed = (kind) => handler.notify[`${kind}Changed`]();
  offer.updated = (uri) => handler.notify.resourceUpdated(uri);
  createServer(async (asked, answer) => {
    const { status, headers, body } = await handler.fetch(requestOf(asked, answer));
    answer.writeHead(status, Object.fromEntries(headers));
    if (!body) return answer.end();
    const stream = Readable.fromWeb(body).on("error", () => answer.destroy());
    stream.pipe(answer).on("close", () => stream.destroy());
  }).listen(0, "127.0.0.1");
}

/** A request as the web has it; whoever hangs up aborts it. */
function requestOf(asked, answer) {
  const gone = new AbortController();
  answer.on("close", () => gone.abort());
  const body = asked.method === "POST" ? { body: Readable.toWeb(asked), duplex: "half" } : {};
  const { method, headers, url } = asked;
  return new Request(`http://${headers.host}${url}`, { method, headers, signal: gone.signal, ...body });
}

process.argv.includes("--http") ? listen() : converse();
