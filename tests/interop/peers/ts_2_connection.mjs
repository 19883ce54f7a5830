// A conversation without a handshake, held by the official TypeScript SDK (2.x), and a record of what passed in it.
import { Connection as Handshake, PATIENCE, require, tapped } from "./ts_connection.mjs";

const { Client, LOG_LEVEL_META_KEY, StreamableHTTPClientTransport } = require("@modelcontextprotocol/client");
const { StdioClientTransport } = require("@modelcontextprotocol/client/stdio");

/** The SDK's own transport: to a command, or to an address. */
function lineTo([first, ...rest]) {
  if (first.startsWith("http:")) return new (tapped(StreamableHTTPClientTransport))(new URL(first));
  return new (tapped(StdioClientTransport))({ command: first, args: rest, env: process.env });
}

/** One conversation, in which the client listens to all changes. */
export class Connection extends Handshake {
  #level;

  lineTo(server) {
    return lineTo(server);
  }

  get notified() {
    const changes = ["tools", "resources", "prompts"].map((kind) => `notifications/${kind}/list_changed`);
    return [...changes, "notifications/resources/updated", "notifications/message"];
  }

  get questions() {
    return { sampling: "sampling/createMessage", elicitation: "elicitation/create", roots: "roots/list" };
  }

  clientWith(capabilities) {
    const versionNegotiation = { mode: { pin: this.revision } };
    return new Client({ name: "official", version: "1.0" }, { capabilities, versionNegotiation });
  }

  async begin() {
    await this.client.connect(this.transport, { timeout: PATIENCE });
    await this.client.listen({ toolsListChanged: true, resourcesListChanged: true, promptsListChanged: true });
  }

  callTool(params, options) {
    const _meta = this.#level && { [LOG_LEVEL_META_KEY]: this.#level };
    return this.client.callTool({ ...params, ...(_meta && { _meta }) }, options);
  }

  alive() {
    return this.client.discover();
  }

  async logFrom(level) {
    this.#level = level;
  }

  async watching(uri, doing) {
    const listen = await this.client.listen({ resourceSubscriptions: [uri] });
    await doing();
    await listen.close();
  }

  /** Notifications, and the questions that came within a result. */
  asked(method) {
    const within = this.sentBy("server").flatMap((message) => Object.values(message.result?.inputRequests ?? {}));
    return [...super.asked(method), ...within.filter((question) => question.method === method)];
  }
}
