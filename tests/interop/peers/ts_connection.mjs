// A conversation with a server, held by the official TypeScript SDK (1.x), and a record of what passed in it.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { resolve } from "node:path";
import { isDeepStrictEqual } from "node:util";

export const require = createRequire(resolve(process.argv[2], "package.json")); // the npm folder that the SDK is installed in
const { Client } = require("@modelcontextprotocol/sdk/client/index.js");
const { SSEClientTransport } = require("@modelcontextprotocol/sdk/client/sse.js");
const { StdioClientTransport } = require("@modelcontextprotocol/sdk/client/stdio.js");
const { StreamableHTTPClientTransport } = require("@modelcontextprotocol/sdk/client/streamableHttp.js");
const { WebSocketClientTransport } = require("@modelcontextprotocol/sdk/client/websocket.js");
const types = require("@modelcontextprotocol/sdk/types.js");

export const PATIENCE = 30_000; // milliseconds that one probe may take; a good one takes a few
export const STARTING = 60_000; // more, for one that starts another server: all revisions do so at the same time
export const MODERN = "2026-07-28";
export const ROOT = { uri: "file:///workspace", name: "workspace" };

const NOTICES = [
  types.ToolListChangedNotificationSchema,
  types.ResourceListChangedNotificationSchema,
  types.ResourceUpdatedNotificationSchema,
  types.PromptListChangedNotificationSchema,
  types.LoggingMessageNotificationSchema,
  types.ElicitationCompleteNotificationSchema,
];

/** All capabilities that a client can declare in a revision. */
export function capabilitiesIn(revision) {
  const roots = revision >= MODERN ? {} : { listChanged: true };
  return { sampling: {}, roots, elicitation: { form: {}, url: {} } };
}

/** Fail with a message unless both are equal. */
export function equal(seen, expected) {
  assert(isDeepStrictEqual(seen, expected), `${JSON.stringify(seen)} instead of ${JSON.stringify(expected)}`);
}

/** Fail with a message unless one contains the other. */
export function contains(seen, expected) {
  assert(seen.includes(expected), `${JSON.stringify(expected)} is not among ${JSON.stringify(seen)}`);
}

/** A transport of the SDK's, which also keeps a copy of what passes and offers a revision of our choice. */
export const tapped = (Transport) =>
  class extends Transport {
    kept = [];
    revision;

    constructor(...options) {
      super(...options);
      let heard;
      const hear = (deliver) => {
        heard = deliver && ((message, extra) => {
          if (this.kept.at(-1)?.message !== message) this.kept.push({ sender: "server", message });
          deliver(message, extra);
        });
      };
      Object.defineProperty(this, "onmessage", { get: () => heard, set: hear }); // the SDK sets it more than once
    }

    send(message, options) {
      // The SDK itself offers its newest revision only.
      const params = { ...message.params, protocolVersion: this.revision };
      const sent = message.method === "initialize" ? { ...message, params } : message;
      this.kept.push({ sender: "client", message: sent });
      return super.send(sent, options);
    }

    /** The SDK calls it with the revision that the server answered. */
    setProtocolVersion(revision) {
      this.agreed = revision;
      super.setProtocolVersion?.(revision);
    }
  };

/** The SDK's own transport: to a command, or to an address, which ends in /sse for the older one over HTTP. */
function lineTo([first, ...rest]) {
  if (first.startsWith("ws:")) return new (tapped(WebSocketClientTransport))(new URL(first));
  if (!first.startsWith("http:")) {
    return new (tapped(StdioClientTransport))({ command: first, args: rest, env: process.env });
  }
  return new (tapped(first.endsWith("/sse") ? SSEClientTransport : StreamableHTTPClientTransport))(new URL(first));
}

/** One connection to the server, and the messages that the server sent unasked. */
export class Connection {
  notices = [];
  faults = []; // what the SDK could not decode
  samplingCancelled = Promise.withResolvers();
  #news = Promise.withResolvers();

  /** Connect to a server, in a revision and with chosen capabilities. */
  static async open(server, revision, capabilities) {
    const connection = new this(server, revision, capabilities);
    await connection.begin();
    return connection;
  }

  constructor(server, revision, capabilities) {
    this.server = server;
    this.revision = revision;
    this.transport = Object.assign(this.lineTo(server), { revision });
    this.client = this.clientWith(capabilities);
    this.client.onerror = (error) => this.faults.push(error);
    for (const notice of this.notified) this.client.setNotificationHandler(notice, (said) => this.#onNotice(said));
    // The SDK refuses a handler whose capability is not declared.
    const { sampling, elicitation, roots } = this.questions;
    if (capabilities.sampling) this.client.setRequestHandler(sampling, this.#onSampling);
    if (capabilities.elicitation) this.client.setRequestHandler(elicitation, this.#onElicitation);
    if (capabilities.roots) this.client.setRequestHandler(roots, () => ({ roots: [ROOT] }));
  }

  /** Another conversation with the same server, with other capabilities. */
  another(capabilities) {
    return this.constructor.open(this.server, this.revision, capabilities);
  }

  close() {
    return this.client.close();
  }

  // --- where versions differ -----------------------------------------------------------------

  lineTo(server) {
    return lineTo(server);
  }

  get notified() {
    return NOTICES;
  }

  get questions() {
    return {
      sampling: types.CreateMessageRequestSchema,
      elicitation: types.ElicitRequestSchema,
      roots: types.ListRootsRequestSchema,
    };
  }

  clientWith(capabilities) {
    return new Client({ name: "official", version: "1.0" }, { capabilities });
  }

  /** Shakes hands. */
  begin() {
    return this.client.connect(this.transport, { timeout: PATIENCE });
  }

  callTool(params, options) {
    return this.client.callTool(params, undefined, options);
  }

  /** Check that the server responds. */
  alive() {
    return this.client.ping();
  }

  /** Request log messages of that level and above. */
  logFrom(level) {
    return this.client.setLoggingLevel(level);
  }

  /** Wants to hear of a resource while something is done. */
  async watching(uri, doing) {
    await this.client.subscribeResource({ uri });
    await doing();
    await this.client.unsubscribeResource({ uri });
  }

  /** The requests of one kind that the server has sent. */
  asked(method) {
    return this.sentBy("server").filter((message) => message.method === method);
  }

  // --- what the server says ------------------------------------------------------------------

  /** The params of the oldest such notification, once there is one. Each is returned once. */
  async heard(method) {
    for (;;) {
      const place = this.notices.findIndex((notice) => notice.method === method);
      if (place >= 0) return this.notices.splice(place, 1)[0].params;
      await this.#news.promise;
    }
  }

  /** Fail if such a notification came. Check liveness first: all earlier messages have arrived then. */
  async nothingHeard(method) {
    await this.alive();
    const heard = this.notices.filter((notice) => notice.method === method);
    equal(heard, []);
  }

  /** The text result of a tool; a failure of the tool is a failure of the probe. */
  async call(name, args = {}) {
    const result = await this.callTool({ name, arguments: args });
    const text = result.content.map((block) => block.text ?? "").join("");
    assert(!result.isError, `tool ${name} failed: ${text}`);
    return text;
  }

  /** The messages of one side so far. */
  sentBy(sender) {
    return this.transport.kept.filter((entry) => entry.sender === sender).map((entry) => entry.message);
  }

  #onNotice(notice) {
    this.notices.push(notice);
    this.#news.resolve();
    this.#news = Promise.withResolvers();
  }

  // --- callbacks of the host application

  /** Echo the prompt. Block on "hang", and report progress first if requested. */
  #onSampling = async ({ params }, { signal, sendNotification }) => {
    const { text } = params.messages.at(-1).content;
    if (text === "hang") {
      // Of a request that was cancelled before its handler began, the signal tells nothing more.
      if (!signal.aborted) await new Promise((stop) => signal.addEventListener("abort", stop));
      this.samplingCancelled.resolve();
    }
    const progressToken = params._meta?.progressToken;
    if (progressToken !== undefined) {
      const progress = { progressToken, progress: 1, total: 2 };
      await sendNotification({ method: "notifications/progress", params: progress });
    }
    const content = { type: "text", text: `echo: ${text}` };
    return { role: "assistant", content, model: "parrot", stopReason: "endTurn" };
  };

  /** Do what the message says: "accept", "decline" or "cancel". */
  #onElicitation = ({ params }) => {
    const filled = params.message === "accept" && params.mode !== "url";
    return { action: params.message, ...(filled && { content: { name: "Ada", age: 36 } }) };
  };
}
