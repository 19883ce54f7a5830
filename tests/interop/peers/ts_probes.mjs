// The probes: one for each cell of the matrix, by its name.
//
// A probe uses the everything-server through the official SDK and throws if anything is not as the specification wants
// it. A cell is a method and the side that receives it, or a capability and the side that declares it.
import assert from "node:assert/strict";
import { CAPABILITIES, Connection, ROOT, contains, equal, types } from "./ts_connection.mjs";

const { InvalidParams } = types.ErrorCode;
const RESOURCE_NOT_FOUND = -32002;

/** Each takes {server, revision, connection}; the names are the cells. */
export const PROBES = {
  async "initialize to server"({ revision, connection }) {
    equal(connection.transport.agreed, revision);
    equal(connection.client.getServerVersion().name, "everything");
    equal(connection.client.getInstructions(), "Try everything.");
  },

  /** Only after it may a server ask anything of its client. */
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

  /** The tool is stopped, and its call is never answered. */
  async "notifications/cancelled to server"({ connection }) {
    const stop = new AbortController();
    const options = { signal: stop.signal, onprogress: () => stop.abort("enough") };
    await assert.rejects(connection.client.callTool({ name: "hang", arguments: {} }, undefined, options), /enough/);
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

  /** The client reports progress of a sampling request; the server hears it. */
  async "notifications/progress to server"({ connection }) {
    equal(JSON.parse(await connection.call("sample_attentively", { prompt: "hello" })), [1]);
  },

  /** In step with the server: what this SDK reads together with the answer, it drops. */
  async "notifications/progress to client"({ revision, connection }) {
    const reports = [];
    const options = { onprogress: (report) => reports.push(report) };
    await connection.client.callTool({ name: "count_in_step", arguments: { steps: 3 } }, undefined, options);
    await connection.client.ping();
    const hasMessages = revision >= "2025-03-26";
    const expected = [1, 2, 3].map((progress) => ({
      progress,
      total: 3,
      ...(hasMessages && { message: `step ${progress}` }),
    }));
    equal(reports, expected);
  },

  async "tools/list to server"({ connection }) {
    const { tools } = await connection.client.listTools();
    const add = tools.find((tool) => tool.name === "add");
    equal(add?.description, "Adds two numbers.");
    equal(add.inputSchema.required.toSorted(), ["a", "b"]);
  },

  async "tools/call to server"({ connection }) {
    equal(await connection.call("add", { a: 2, b: 3 }), "5");
    const failed = await connection.client.callTool({ name: "fail", arguments: {} });
    equal(failed.isError, true);
    contains(failed.content[0].text, "on purpose");
    await refused(connection.client.callTool({ name: "no such tool", arguments: {} }), InvalidParams);
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

  async "resources/read to server"({ connection }) {
    const read = async (uri) => (await connection.client.readResource({ uri })).contents[0];
    const { uri, mimeType, text } = await read("test://static");
    equal([uri, mimeType, text], ["test://static", "text/plain", "static text"]);
    equal((await read("test://item/7")).text, "item 7");
    equal((await read("test://binary")).blob, "AAEC");
    await refused(read("test://nowhere"), RESOURCE_NOT_FOUND);
  },

  async "notifications/resources/list_changed to client"({ connection }) {
    const uris = async () => (await connection.client.listResources()).resources.map((resource) => resource.uri);
    await comesAndGoes(connection, "resources", "test://spare", uris);
  },

  /** Only a subscriber is told, and only of the resource that it subscribed to. */
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
    await connection.client.subscribeResource({ uri: "test://item/7" });
    await connection.call("touch", { uri: "test://item/7" });
    equal((await connection.heard("notifications/resources/updated")).uri, "test://item/7");
    await connection.client.unsubscribeResource({ uri: "test://item/7" });
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
    equal(taken.map(({ name, required }) => [name, required]), [["who", true]]);
  },

  async "prompts/get to server"({ connection }) {
    const { messages } = await connection.client.getPrompt({ name: "greet", arguments: { who: "Ada" } });
    equal([messages[0].role, messages[0].content.text], ["user", "Say hello to Ada."]);
    await refused(connection.client.getPrompt({ name: "no such prompt" }), InvalidParams);
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

  /** What is below the level stays away. */
  async "logging/setLevel to server"({ connection }) {
    await connection.client.setLoggingLevel("warning");
    await connection.call("log", { level: "info", text: "quiet" });
    await connection.nothingHeard("notifications/message");
    await connection.call("log", { level: "error", text: "loud" });
    equal((await connection.heard("notifications/message")).level, "error");
  },

  async "notifications/message to client"({ connection }) {
    await connection.client.setLoggingLevel("debug");
    await connection.call("log", { level: "notice", text: "hello" });
    const { level, logger, data } = await connection.heard("notifications/message");
    equal([level, logger, data], ["notice", "everything", { text: "hello" }]);
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
    equal(Object.keys(form.properties).toSorted(), ["age", "name"]);
    if (revision >= "2025-11-25") {
      equal(await connection.call("elicit_url", { message: "accept" }), "accept");
      const { mode, url, elicitationId } = connection.asked("elicitation/create").at(-1).params;
      equal([mode, url, elicitationId], ["url", "https://example.com/form", "form-1"]);
    }
  },

  async "notifications/elicitation/complete to client"({ connection }) {
    await connection.call("elicit_url", { message: "accept" });
    await connection.call("finish_elicitation");
    equal((await connection.heard("notifications/elicitation/complete")).elicitationId, "form-1");
  },

  // --- capabilities --------------------------------------------------------------------------

  "server tools.listChanged": serverCapability("tools.listChanged"),
  "server resources.subscribe": serverCapability("resources.subscribe"),
  "server resources.listChanged": serverCapability("resources.listChanged"),
  "server prompts.listChanged": serverCapability("prompts.listChanged"),
  "server logging": serverCapability("logging"),
  "server completions": serverCapability("completions"),
  "client sampling": clientCapability("sampling", "sample", "sampling/createMessage", { prompt: "hello" }),
  "client roots.listChanged": clientCapability("roots.listChanged", "list_roots", "roots/list", {}),
  "client elicitation": clientCapability("elicitation", "elicit", "elicitation/create", { message: "accept" }),
  "client elicitation.form": clientCapability("elicitation.form", "elicit", "elicitation/create", {
    message: "accept",
  }),
  "client elicitation.url": clientCapability("elicitation.url", "elicit_url", "elicitation/create", {
    message: "accept",
  }),
};

/** An entry is hidden and shown again: each time the client is told, and the list has changed. */
async function comesAndGoes(connection, kind, key, listed) {
  contains(await listed(), key);
  await connection.call("hide", { kind });
  await connection.heard(`notifications/${kind}/list_changed`);
  equal((await listed()).includes(key), false);
  await connection.call("show", { kind });
  await connection.heard(`notifications/${kind}/list_changed`);
  contains(await listed(), key);
}

/** Fails unless a request is answered with that error. */
async function refused(request, code) {
  const answer = await request.catch((error) => error);
  assert(answer instanceof types.McpError, `${JSON.stringify(answer)} instead of error ${code}`);
  equal(answer.code, code);
}

/** The capabilities that are on, as paths: `tools.listChanged`, and `logging` where there is nothing below. */
export function declared(capabilities, prefix = "") {
  return Object.entries(capabilities).flatMap(([name, value]) => {
    if (typeof value === "object" && Object.keys(value).length) return declared(value, `${prefix}${name}.`);
    return value === false || value === undefined ? [] : [`${prefix}${name}`];
  });
}

/** That the server declares a capability; what it promises is for the probes of its methods. */
function serverCapability(path) {
  return async ({ connection }) => contains(declared(connection.client.getServerCapabilities()), path);
}

/** That the server knows what the client declares, and asks nothing of a client that does not declare it. */
function clientCapability(path, tool, method, args) {
  return async ({ server, revision, connection }) => {
    const names = path.split(".");
    const known = JSON.parse(await connection.call("client_capabilities"));
    const value = names.reduce((branch, name) => branch?.[name], known);
    assert(value !== undefined, `${path} is not among ${JSON.stringify(known)}`);
    const other = await Connection.open(server, revision, without(path.replace(/\.listChanged$/, "")));
    try {
      // An error is as good a refusal as a failed tool.
      const result = await other.client.callTool({ name: tool, arguments: args }).catch(() => ({ isError: true }));
      equal(result.isError, true);
      equal(other.asked(method), []);
    } finally {
      await other.close();
    }
  };
}

/** The client's capabilities but for one. */
function without(path) {
  const capabilities = structuredClone(CAPABILITIES);
  const parents = path.split(".");
  const leaf = parents.pop();
  delete parents.reduce((branch, name) => branch[name], capabilities)[leaf];
  return capabilities;
}
