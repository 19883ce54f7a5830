// The probes: one for each cell of the matrix, by its name.
//
// A probe uses the everything-server through the official SDK and throws if anything is not as the specification wants
// it. A cell is a method and the side that receives it, or a capability and the side that declares it.
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { existsSync, renameSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout } from "node:timers/promises";
import { MODERN, ROOT, capabilitiesIn, contains, equal } from "./ts_connection.mjs";

const INVALID_PARAMS = -32602;
const RESOURCE_NOT_FOUND = -32002;
const SUBSCRIPTION_ID = "io.modelcontextprotocol/subscriptionId";
const UPDATED = "notifications/resources/updated";

/** Each takes {revision, connection}; the names are the cells. */
export const PROBES = {
  async "initialize to server"({ revision, connection }) {
    equal(connection.transport.agreed, revision);
    equal(connection.client.getServerVersion().name, "everything");
    equal(connection.client.getInstructions(), "Try everything.");
  },

  /** Only after it may a server send requests to its client. */
  async "notifications/initialized to server"({ connection }) {
    equal(await connection.call("ping_client"), "pong");
  },

  async "ping to server"({ connection }) {
    await connection.client.ping();
  },

  async "ping to client"({ connection }) {
    const before = connection.asked("ping").length;
    equal(await connection.call("ping_client"), "pong");
    equal(connection.asked("ping").length, before + 1);
  },

  /** The tool stops, and its call gets no response. */
  async "notifications/cancelled to server"({ connection }) {
    const stop = new AbortController();
    const options = { signal: stop.signal, onprogress: () => stop.abort("enough") };
    await assert.rejects(connection.callTool({ name: "hang", arguments: {} }, options), /enough/);
    contains(await connection.call("happened", { event: "hang cancelled" }), "hang cancelled");
    const { id } = connection.sentBy("client").findLast((message) => message.params?.name === "hang");
    const answers = connection.sentBy("server").filter((message) => !message.method && message.id === id);
    equal(answers, []);
  },

  /** A server whose patience is at an end says so, and the SDK stops its handler. */
  async "notifications/cancelled to client"({ connection }) {
    equal(await connection.call("sample_impatiently", { prompt: "hang" }), "gave up");
    await connection.samplingCancelled.promise;
  },

  /** The client reports progress of a sampling request; the server receives it. */
  async "notifications/progress to server"({ connection }) {
    equal(JSON.parse(await connection.call("sample_attentively", { prompt: "hello" })), [1]);
  },

  /** In step with the server: what this SDK reads together with the answer, it drops. */
  async "notifications/progress to client"({ revision, connection }) {
    const reports = [];
    const options = { onprogress: (report) => reports.push([report, connection.call("go_on")]) };
    await connection.callTool({ name: "count_in_step", arguments: { steps: 3 } }, options);
    await Promise.all(reports.map(([, goingOn]) => goingOn));
    const hasMessages = revision >= "2025-03-26";
    const expected = [1, 2, 3].map((progress) => ({
      progress,
      total: 3,
      ...(hasMessages && { message: `step ${progress}` }),
    }));
    equal(reports.map(([report]) => report), expected);
  },

  /** It replaces the handshake. */
  async "server/discover to server"({ revision, connection }) {
    const { supportedVersions, instructions } = await connection.client.discover();
    contains(supportedVersions, revision);
    equal(instructions, "Try everything.");
    equal(connection.client.getNegotiatedProtocolVersion(), revision);
    equal(connection.client.getServerVersion().name, "everything");
    equal(connection.sentBy("client").filter((message) => message.method === "initialize"), []);
  },

  /** Only listeners to a resource receive its updates. */
  async "subscriptions/listen to server"({ connection }) {
    await connection.call("touch", { uri: "test://static" });
    await connection.nothingHeard(UPDATED);
    await connection.watching("test://static", async () => {
      await connection.call("touch", { uri: "test://binary" });
      await connection.call("touch", { uri: "test://static" });
      equal((await connection.heard(UPDATED)).uri, "test://static");
    });
    await connection.call("touch", { uri: "test://static" });
    await connection.nothingHeard(UPDATED);
  },

  /** Before any other notification, the client receives the acknowledgement, under the id of its listen. */
  async "notifications/subscriptions/acknowledged to client"({ connection }) {
    const wanted = { toolsListChanged: true, resourceSubscriptions: ["test://item/7"] };
    const listen = await connection.client.listen(wanted);
    equal(listen.honoredFilter, wanted);
    const { id } = connection.sentBy("client").findLast((message) => message.method === "subscriptions/listen");
    const { params } = connection.asked("notifications/subscriptions/acknowledged").at(-1);
    equal([params._meta[SUBSCRIPTION_ID], params.notifications], [id, wanted]);
    await listen.close();
  },

  async "tools/list to server"({ connection }) {
    const { tools } = await connection.client.listTools();
    const add = tools.find((tool) => tool.name === "add");
    equal(add?.description, "Adds two numbers.");
    equal(add.inputSchema.required.toSorted(), ["a", "b"]);
  },

  async "tools/call to server"({ connection }) {
    equal(await connection.call("add", { a: 2, b: 3 }), "5");
    const failed = await connection.callTool({ name: "fail", arguments: {} });
    equal(failed.isError, true);
    contains(failed.content[0].text, "on purpose");
    await refused(connection.callTool({ name: "no such tool", arguments: {} }), INVALID_PARAMS);
  },

  async "notifications/tools/list_changed to client"({ connection }) {
    const names = async () => (await connection.client.listTools()).tools.map((tool) => tool.name);
    await comesAndGoes(connection, "tools", "spare", names);
  },

  async "resources/list to server"({ connection }) {
    const { resources } = await connection.client.listResources();
    equal(resources.find((resource) => resource.uri === "test://static")?.mimeType, "text/plain");
  },

  async "resources/templates/list to server"({ connection }) {
    const { resourceTemplates } = await connection.client.listResourceTemplates();
    const templates = resourceTemplates.map((template) => template.uriTemplate);
    contains(templates, "test://item/{id}");
  },

  async "resources/read to server"({ revision, connection }) {
    const read = async (uri) => (await connection.client.readResource({ uri })).contents[0];
    const { uri, mimeType, text } = await read("test://static");
    equal([uri, mimeType, text], ["test://static", "text/plain", "static text"]);
    equal((await read("test://item/7")).text, "item 7");
    equal((await read("test://binary")).blob, "AAEC");
    await refused(read("test://nowhere"), revision >= MODERN ? INVALID_PARAMS : RESOURCE_NOT_FOUND);
  },

  async "notifications/resources/list_changed to client"({ connection }) {
    const uris = async () => (await connection.client.listResources()).resources.map((resource) => resource.uri);
    await comesAndGoes(connection, "resources", "test://spare", uris);
  },

  /** Only a subscriber gets updates, and only of its resource. */
  async "resources/subscribe to server"({ connection }) {
    await connection.call("touch", { uri: "test://static" });
    await connection.nothingHeard("notifications/resources/updated");
    await connection.client.subscribeResource({ uri: "test://static" });
    await connection.call("touch", { uri: "test://binary" });
    await connection.call("touch", { uri: "test://static" });
    equal((await connection.heard("notifications/resources/updated")).uri, "test://static");
    await connection.client.unsubscribeResource({ uri: "test://static" });
  },

  async "notifications/resources/updated to client"({ connection }) {
    await connection.watching("test://item/7", async () => {
      await connection.call("touch", { uri: "test://item/7" });
      equal((await connection.heard(UPDATED)).uri, "test://item/7");
    });
  },

  async "resources/unsubscribe to server"({ connection }) {
    await connection.client.subscribeResource({ uri: "test://static" });
    await connection.client.unsubscribeResource({ uri: "test://static" });
    await connection.call("touch", { uri: "test://static" });
    await connection.nothingHeard("notifications/resources/updated");
  },

  async "prompts/list to server"({ connection }) {
    const { prompts } = await connection.client.listPrompts();
    const taken = prompts.find((prompt) => prompt.name === "greet")?.arguments ?? [];
    equal([taken[0]?.name, taken[0]?.required], ["who", true]);
  },

  async "prompts/get to server"({ connection }) {
    const { messages } = await connection.client.getPrompt({ name: "greet", arguments: { who: "Ada" } });
    equal([messages[0].role, messages[0].content.text], ["user", "Say hello to Ada."]);
    await refused(connection.client.getPrompt({ name: "no such prompt" }), INVALID_PARAMS);
  },

  async "notifications/prompts/list_changed to client"({ connection }) {
    const names = async () => (await connection.client.listPrompts()).prompts.map((prompt) => prompt.name);
    await comesAndGoes(connection, "prompts", "spare", names);
  },

  async "completion/complete to server"({ connection }) {
    const ref = { type: "ref/prompt", name: "greet" };
    const { completion } = await connection.client.complete({ ref, argument: { name: "who", value: "A" } });
    equal(completion.values, ["Ada", "Alan"]);
  },

  /** Messages below the level are not sent. */
  async "logging/setLevel to server"({ connection }) {
    await connection.client.setLoggingLevel("warning");
    await connection.call("log", { level: "info", text: "quiet" });
    await connection.nothingHeard("notifications/message");
    await connection.call("log", { level: "error", text: "loud" });
    equal((await connection.heard("notifications/message")).level, "error");
  },

  async "notifications/message to client"({ connection }) {
    await connection.logFrom("debug");
    await connection.call("log", { level: "notice", text: "hello" });
    const { level, logger, data } = await connection.heard("notifications/message");
    equal([level, logger, data], ["notice", "everything", { text: "hello" }]);
    await connection.logFrom("error");
    await connection.call("log", { level: "warning", text: "quiet" });
    await connection.nothingHeard("notifications/message");
  },

  async "sampling/createMessage to client"({ connection }) {
    const reply = JSON.parse(await connection.call("sample", { prompt: "hello" }));
    equal(reply, { text: "echo: hello", model: "parrot" });
  },

  async "roots/list to client"({ connection }) {
    equal(JSON.parse(await connection.call("list_roots")), [[ROOT.uri, ROOT.name]]);
  },

  async "notifications/roots/list_changed to server"({ connection }) {
    await connection.client.sendRootsListChanged();
    contains(await connection.call("happened", { event: "roots changed" }), "roots changed");
  },

  /** By form, with each of the three answers; and by URL, where the revision has it. */
  async "elicitation/create to client"({ revision, connection }) {
    const accepted = JSON.parse(await connection.call("elicit", { message: "accept" }));
    equal(accepted, { action: "accept", name: "Ada", age: 36 });
    equal(JSON.parse(await connection.call("elicit", { message: "decline" })), { action: "decline" });
    equal(JSON.parse(await connection.call("elicit", { message: "cancel" })), { action: "cancel" });
    const form = connection.asked("elicitation/create").at(-1).params.requestedSchema;
    equal(form.required.toSorted(), ["age", "name"]);
    if (revision >= "2025-11-25") {
      equal(await connection.call("elicit_url", { message: "accept" }), "accept");
      const { mode, url, elicitationId } = connection.asked("elicitation/create").at(-1).params;
      equal([mode, url], ["url", "https://example.com/form"]);
      equal(elicitationId === undefined, revision >= MODERN);
    }
  },

  async "notifications/elicitation/complete to client"({ connection }) {
    await connection.call("elicit_url", { message: "accept" });
    await connection.call("finish_elicitation");
    equal((await connection.heard("notifications/elicitation/complete")).elicitationId, "form-1");
  },

  "a process is killed": Object.assign(processKilled, { starts: true }),

  // --- capabilities --------------------------------------------------------------------------

  "server tools.listChanged": serverCapability("tools.listChanged"),
  "server resources.subscribe": serverCapability("resources.subscribe"),
  "server resources.listChanged": serverCapability("resources.listChanged"),
  "server prompts.listChanged": serverCapability("prompts.listChanged"),
  "server logging": serverCapability("logging"),
  "server completions": serverCapability("completions"),
  "client sampling": clientCapability("sampling", "sample", "sampling/createMessage", { prompt: "hello" }),
  "client roots": clientCapability("roots", "list_roots", "roots/list", {}),
  "client roots.listChanged": clientCapability("roots.listChanged", "list_roots", "roots/list", {}),
  "client elicitation": clientCapability("elicitation", "elicit", "elicitation/create", { message: "accept" }),
  "client elicitation.form": clientCapability("elicitation.form", "elicit", "elicitation/create", {
    message: "accept",
  }),
  "client elicitation.url": clientCapability("elicitation.url", "elicit_url", "elicitation/create", {
    message: "accept",
  }),
};

/** Subscriptions survive the kill of a process, unless they end with their stream. The test kills it once all clients are ready, and changes the resource.
 */
async function processKilled({ revision, connection }) {
  const folder = process.env.MEANWHILE;
  await connection.watching("test://item/8", async () => {
    const ready = { line: connection.server[0], process: Number(await connection.call("served_by")) };
    const told = join(folder, randomUUID());
    writeFileSync(told, JSON.stringify(ready));
    renameSync(told, `${told}.ready`); // so that no reader sees half of it
    while (!existsSync(join(folder, "done"))) await setTimeout(20);
    if (revision < MODERN) equal((await connection.heard(UPDATED)).uri, "test://item/8");
  });
  connection.notices.length = 0;
  connection.faults.length = 0; // it is a fault to the SDK that a stream was lost
}

/** An entry is hidden and shown again: each time the client gets a notification and the changed list. */
async function comesAndGoes(connection, kind, key, listed) {
  contains(await listed(), key);
  await connection.call("hide", { kind });
  await connection.heard(`notifications/${kind}/list_changed`);
  equal((await listed()).includes(key), false);
  await connection.call("show", { kind });
  await connection.heard(`notifications/${kind}/list_changed`);
  contains(await listed(), key);
}

/** Fail unless a request fails with that error. */
async function refused(request, code) {
  const answer = await request.catch((error) => error);
  assert(answer instanceof Error, `${JSON.stringify(answer)} instead of error ${code}`);
  equal(answer.code, code);
}

/** The declared capabilities, as paths: `tools.listChanged`, and `logging` where there is nothing below. */
export function declared(capabilities, prefix = "") {
  return Object.entries(capabilities).flatMap(([name, value]) => {
    if (typeof value === "object" && Object.keys(value).length) return declared(value, `${prefix}${name}.`);
    return value === false || value === undefined ? [] : [`${prefix}${name}`];
  });
}

/** Check that the server declares a capability; the probes of its methods test its meaning. */
function serverCapability(path) {
  return async ({ connection }) => contains(declared(connection.client.getServerCapabilities()), path);
}

/** Check that the server knows the client's capability, and sends no request to a client without it. */
function clientCapability(path, tool, method, args) {
  const probe = async ({ revision, connection }) => {
    const names = path.split(".");
    const known = JSON.parse(await connection.call("client_capabilities"));
    const value = names.reduce((branch, name) => branch?.[name], known);
    assert(value !== undefined, `${path} is not among ${JSON.stringify(known)}`);
    const other = await connection.another(without(revision, path.replace(/\.listChanged$/, "")));
    try {
      // An error is as good a refusal as a failed tool.
      const result = await other.callTool({ name: tool, arguments: args }).catch(() => ({ isError: true }));
      equal(result.isError, true);
      equal(other.asked(method), []);
    } finally {
      await other.close();
    }
  };
  return Object.assign(probe, { starts: true });
}

/** The client's capabilities but for one. */
function without(revision, path) {
  const capabilities = capabilitiesIn(revision);
  const parents = path.split(".");
  const leaf = parents.pop();
  delete parents.reduce((branch, name) => branch[name], capabilities)[leaf];
  return capabilities;
}
