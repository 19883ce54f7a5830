// npm's client of tasks, @modelcontextprotocol/ext-tasks, against a server of ours: both generations that it knows.
//
//   node ts_tasks.mjs <npm folder> <url> > outcomes.json
//
// The outcome of each generation is an object with what every probe came to.
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [folder, url] = process.argv.slice(2);
const packages = (path) => import(pathToFileURL(join(folder, "node_modules/@modelcontextprotocol", path)));
const { Client, StreamableHTTPClientTransport } = await packages("client/dist/index.mjs");
const { createTaskSessionFromClient } = await packages("ext-tasks/dist/client/index.js");

const MODERN = "2026-07-28";
const INFO = { name: "ext-tasks", version: "1.0" };
const CAPABILITIES = { elicitation: { form: {} } };
const NAMED = { "tools/call": "name", "tasks/get": "taskId", "tasks/update": "taskId", "tasks/cancel": "taskId" };
const PATIENCE = 30_000; // milliseconds that a probe may take; a good one takes a few
let ids = 1000;

/** A request of the modern era, which the SDK leaves to whoever uses it where it is about tasks. */
async function rawDispatch({ method, params }, { signal } = {}) {
  const headers = {
    "content-type": "application/json",
    accept: "application/json, text/event-stream",
    "mcp-protocol-version": MODERN,
    "mcp-method": method,
    "mcp-name": params[NAMED[method]],
  };
  const body = JSON.stringify({ jsonrpc: "2.0", id: ++ids, method, params });
  const response = await fetch(url, { method: "POST", headers, body, signal });
  const text = await response.text();
  const { result, error } = JSON.parse(text.startsWith("{") ? text : text.match(/^data: (\{.*)$/m)[1]);
  return error ? { kind: "error", error } : { kind: "result", result };
}

/** A session of tasks, and what ends it. */
async function open(generation) {
  const modern = generation === "v2";
  const versionNegotiation = { mode: modern ? { pin: MODERN } : "legacy" };
  const client = new Client(INFO, { capabilities: CAPABILITIES, versionNegotiation });
  await client.connect(new StreamableHTTPClientTransport(new URL(url)));
  const { tools } = await client.listTools();
  const declared = new Map(tools.map((tool) => [tool.name, tool.execution?.taskSupport]));
  const framing = { protocolVersion: MODERN, clientInfo: INFO, clientCapabilities: CAPABILITIES };
  const session = createTaskSessionFromClient(client, {
    endpointId: "ours",
    ...(modern && { rawDispatch, v2RequestFraming: framing }),
    tools: {
      currentTool: (name) => {
        const tool = tools.find((one) => one.name === name);
        return { name, inputSchema: tool.inputSchema, taskSupport: declared.get(name) };
      },
    },
    onInputRequest: async () => ({ action: "accept", content: { sure: true } }),
  });
  return { session, close: async () => { await session.close(); await client.close(); } };
}

const PREFERRED = { task: { preference: "prefer" } };
const seen = ({ outcome, lastTask }) => ({
  status: outcome.status,
  result: outcome.result?.structuredContent,
  isError: outcome.result?.isError,
  error: outcome.error && { code: outcome.error.code, message: outcome.error.message },
  last: lastTask?.status,
});

const PROBES = {
  operation_name: (session) => settled(session, "operation_name", { key: "value" }),
  asks: (session) => settled(session, "asks"),
  fails: (session) => settled(session, "fails"),
  errs: (session) => settled(session, "errs"),
  plain: async (session) => {
    const execution = await session.callTool("plain", {});
    return { kind: execution.kind, ...seen(await execution.settle()) };
  },
  cancel: async (session) => {
    const execution = await session.callTool("waits", {}, PREFERRED);
    await execution.cancel();
    return { status: seen(await execution.settle()).status }; // whether it looks once more is a matter of chance
  },
  resume: async (session, generation) => {
    const execution = await session.callTool("operation_name", { key: "later" }, PREFERRED);
    let reference;
    await execution.handoff((given) => { reference = given; });
    const other = await open(generation);
    const resumed = await other.session.resumeTask(reference);
    const outcome = seen(await resumed.settle());
    await other.close();
    return outcome;
  },
  snapshot: async (session) => {
    const execution = await session.callTool("waits", {}, PREFERRED);
    const view = await session.task(execution.handle.taskId).snapshot();
    const listed = session.capabilities.inventory === "server-list" && await session.listTasks();
    await execution.cancel();
    const found = listed && listed.tasks.find((task) => task.taskId === view.taskId);
    return { status: view.status, retentionMs: view.retentionMs, poll: view.pollInterval, listed: found && found.status };
  },
  unknown: async (session) => {
    try {
      await session.task("nothing").snapshot();
    } catch (error) {
      return { code: error.code, kind: error.data?.kind };
    }
  },
};

async function settled(session, name, params = {}) {
  const execution = await session.callTool(name, params, PREFERRED);
  return { kind: execution.kind, ...seen(await execution.settle()) };
}

/** What a probe comes to, if it does. */
function inTime(probed) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`nothing came within ${PATIENCE} ms`)), PATIENCE);
  });
  return Promise.race([probed, late]).finally(() => clearTimeout(timer));
}

async function tried(generation) {
  const { session, close } = await open(generation);
  const outcomes = {};
  for (const [name, probe] of Object.entries(PROBES)) {
    try {
      outcomes[name] = await inTime(probe(session, generation));
    } catch (error) {
      outcomes[name] = { raised: `${error?.name}: ${error?.message}`, cause: String(error?.cause ?? "") };
    }
  }
  await close();
  return outcomes;
}

const [v1, v2] = await Promise.all([tried("v1"), tried("v2")]);
console.log(JSON.stringify({ v1, v2 }));
process.exit(); // whatever is still waited for
