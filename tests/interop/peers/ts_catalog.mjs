// What a server of the official TypeScript SDK offers our client: the same as those in Python (mcp_catalog.py), as far as
// the modern era has it. Tools return text, JSON where there is more to say.
const LOG_NAME = "everything";
const PEOPLE = { Ada: "lace", Alan: "machine", Grace: "compiler" };
const SPARE = { tools: "spare", resources: "test://spare", prompts: "spare" }; // hidden and shown again
const PNG = Buffer.from("\x89PNG", "latin1").toString("base64");
const STATIC = { uri: "test://static", mimeType: "text/plain", text: "static text" };
const PART = {
  type: "object",
  properties: { kilos: { type: "number" }, at: { type: "string", format: "date-time" } },
  required: ["kilos", "at"],
};
const WEIGHED = {
  type: "object",
  title: "Weighed",
  properties: { who: { type: "string" }, parts: { type: "array", items: { $ref: "#/$defs/Part" } } },
  required: ["who", "parts"],
  $defs: { Part: PART },
};
const FORM = {
  type: "object",
  properties: {
    name: { type: "string", title: "Name" },
    age: { type: "integer", minimum: 0 },
    likes: { type: "string", enum: ["tea", "coffee"], default: "tea" },
  },
  required: ["name", "age"],
};
const CONTENT = [
  { type: "text", text: "words", annotations: { audience: ["user"], priority: 0.5 } },
  { type: "image", data: PNG, mimeType: "image/png" },
  { type: "resource", resource: STATIC },
  { type: "audio", data: PNG, mimeType: "audio/wav" },
  { type: "resource_link", uri: "test://static", name: "static" },
];
const CAPABILITIES = "io.modelcontextprotocol/clientCapabilities";
const READ_ONLY = ["add", "happened", "weigh"];

/** The parameters of the tools that have some, and their types. */
const TAKEN = {
  add: { a: "integer", b: "integer" },
  weigh: { who: "string" },
  misweigh: { who: "string" },
  show_all: { revision: "string" },
  count: { steps: "integer" },
  count_in_step: { steps: "integer" },
  happened: { event: "string" },
  log: { level: "string", text: "string" },
  touch: { uri: "string" },
  hide: { kind: "string" },
  show: { kind: "string" },
  sample: { prompt: "string" },
  elicit: { message: "string" },
  elicit_url: { message: "string" },
};

const text = (value) => ({ content: [{ type: "text", text: value }] });

/** One page of a list. */
function page(items, key, cursor, size) {
  const start = Number(cursor ?? 0);
  const rest = start + size < items.length ? { nextCursor: String(start + size) } : {};
  return { [key]: items.slice(start, start + size), ...rest };
}

/** The answer to a question; until it is there, the result is the question. */
function ask(request, method, params, told) {
  const answer = request.inputResponses?.question;
  if (answer) return told(answer);
  const inputRequests = { question: { method, ...(params && { params }) } };
  return { resultType: "input_required", inputRequests, requestState: "asked" };
}

const progress = (request, step, rest = {}) => {
  const params = { progressToken: request._meta?.progressToken, progress: step, ...rest };
  return request.notify({ method: "notifications/progress", params });
};

/** The catalog and its state. */
export class Offer {
  #hidden = new Set();
  #events = new Map(); // events, by name

  /** `refusal` makes the error that says what is not offered; `changed` and `updated` are set by whoever serves. */
  constructor(refusal) {
    this.refusal = refusal;
  }

  #event(name) {
    if (!this.#events.has(name)) this.#events.set(name, Promise.withResolvers());
    return this.#events.get(name);
  }

  // --- tools -----------------------------------------------------------------------------------

  #tools = {
    add: ({ a, b }) => text(String(a + b)),
    pid: () => text(String(process.pid)),
    fail: () => ({ ...text("failed on purpose"), isError: true }),
    weigh: ({ who }) => {
      const structuredContent = { who, parts: [{ kilos: 1.5, at: "2025-11-25T10:30:00Z" }] };
      return { ...text(JSON.stringify(structuredContent)), structuredContent };
    },
    misweigh: ({ who }) => ({ ...text("wrong"), structuredContent: { who } }),
    show_all: () => ({ content: CONTENT }),
    spare: () => text("spare"),
    count: async ({ steps }, request) => {
      for (let step = 1; step <= steps; step++) {
        await progress(request, step, { total: steps, message: `step ${step}` });
      }
      return text("done");
    },
    count_in_step: async ({ steps }, request) => {
      for (let step = 1; step <= steps; step++) {
        await progress(request, step, { total: steps, message: `step ${step}` });
        await this.#event("step read").promise;
        this.#events.delete("step read");
      }
      return text("done");
    },
    go_on: () => {
      this.#event("step read").resolve();
      return text("going on");
    },
    hang: async (_, request) => {
      await progress(request, 1);
      if (!request.signal.aborted) await new Promise((stop) => request.signal.addEventListener("abort", stop));
      this.#event("hang cancelled").resolve();
      return text("never");
    },
    happened: async ({ event }) => {
      await this.#event(event).promise;
      this.#events.delete(event);
      return text(event);
    },
    log: async ({ level, text: said }, request) => {
      await request.log(level, { text: said }, LOG_NAME);
      return text("logged");
    },
    touch: async ({ uri }) => {
      await this.updated(uri);
      return text("touched");
    },
    hide: async ({ kind }) => {
      this.#hidden.add(kind);
      await this.changed(kind);
      return text("hidden");
    },
    show: async ({ kind }) => {
      this.#hidden.delete(kind);
      await this.changed(kind);
      return text("shown");
    },
    client_capabilities: (_, request) => text(JSON.stringify(request.envelope[CAPABILITIES])),
    sample: ({ prompt }, request) => {
      const messages = [{ role: "user", content: { type: "text", text: prompt } }];
      return ask(request, "sampling/createMessage", { messages, maxTokens: 100 }, ({ content, model }) =>
        text(JSON.stringify({ text: content.text, model })),
      );
    },
    elicit: ({ message }, request) =>
      ask(request, "elicitation/create", { mode: "form", message, requestedSchema: FORM }, ({ action, content }) =>
        text(JSON.stringify({ action, ...content })),
      ),
    elicit_url: ({ message }, request) => {
      const params = { mode: "url", message, url: "https://example.com/form" };
      return ask(request, "elicitation/create", params, ({ action }) => text(action));
    },
    list_roots: (_, request) =>
      ask(request, "roots/list", undefined, ({ roots }) => text(JSON.stringify(roots.map((one) => [one.uri, one.name])))),
  };

  tools(cursor) {
    const there = Object.keys(this.#tools).filter((name) => name !== SPARE.tools || !this.#hidden.has("tools"));
    return page(there.map(described), "tools", cursor, 8);
  }

  call(name, args, request) {
    if (!(name in this.#tools)) throw this.refusal(`unknown tool: ${name}`);
    return this.#tools[name](args, request);
  }

  // --- resources -------------------------------------------------------------------------------

  resources(cursor) {
    const listed = [
      { uri: "test://static", name: "static", mimeType: "text/plain", description: "Always the same text." },
      { uri: "test://binary", name: "binary", mimeType: "application/octet-stream" },
    ];
    if (!this.#hidden.has("resources")) listed.push({ uri: SPARE.resources, name: "spare" });
    return page(listed, "resources", cursor, 2);
  }

  templates() {
    const item = { uriTemplate: "test://item/{id}", name: "item" };
    return { resourceTemplates: [item, { uriTemplate: "test://by/{who}", name: "by" }] };
  }

  read(uri) {
    const [kind, key] = uri.replace("test://", "").split("/");
    if (kind === "static") return { contents: [STATIC] };
    if (kind === "binary") return { contents: [{ uri, mimeType: "application/octet-stream", blob: "AAEC" }] };
    if (kind === "item") return { contents: [{ uri, mimeType: "text/plain", text: `item ${key}` }] };
    throw this.refusal(`no resource ${uri}`);
  }

  // --- prompts, completion ---------------------------------------------------------------------

  prompts(cursor) {
    const who = [{ name: "who", required: true }, { name: "thing" }];
    const listed = [{ name: "greet", description: "Greets somebody.", arguments: who }];
    if (!this.#hidden.has("prompts")) listed.push({ name: SPARE.prompts });
    return page(listed, "prompts", cursor, 1);
  }

  prompt(name, args) {
    if (name !== "greet") throw this.refusal(`unknown prompt: ${name}`);
    const said = { role: "user", content: { type: "text", text: `Say hello to ${args.who}.` } };
    return { messages: [said, { role: "assistant", content: { type: "resource", resource: STATIC } }] };
  }

  /** Names of people, or of the thing that belongs to the person in the other argument. */
  complete({ ref, argument, context }) {
    const who = context?.arguments?.who;
    const known = argument.name === "thing" && who ? [PEOPLE[who]] : Object.keys(PEOPLE);
    const asked = ["greet", "test://by/{who}"].includes(ref.name ?? ref.uri);
    const values = asked ? known.filter((one) => one.startsWith(argument.value)) : [];
    return { completion: { values, total: values.length, hasMore: false } };
  }
}

/** The schemas of a tool, and its annotations. */
function described(name) {
  const taken = TAKEN[name] ?? {};
  const properties = Object.fromEntries(Object.entries(taken).map(([key, type]) => [key, { type }]));
  return {
    name,
    ...(name === "add" && { description: "Adds two numbers." }),
    inputSchema: { type: "object", properties, required: Object.keys(taken) },
    annotations: { title: name, readOnlyHint: READ_ONLY.includes(name) },
    ...(name.endsWith("weigh") && { outputSchema: WEIGHED }),
  };
}
