// What a page does in the browser. Each function talks to a server and gives what came of it.

const HEADERS = { "content-type": "application/json", accept: "application/json, text/event-stream" };
const CLIENT = { protocolVersion: "2025-11-25", capabilities: {}, clientInfo: { name: "page", version: "1.0" } };

/** A conversation over Streamable HTTP, by nothing but fetch. */
class Conversation {
  frames = []; // what passed: {sender, message}
  session = null;
  #ids = 0;

  constructor(url) {
    this.url = url;
  }

  #headers() {
    return { ...HEADERS, ...(this.session && { "mcp-session-id": this.session }) };
  }

  async post(message) {
    const sent = { jsonrpc: "2.0", ...message };
    this.frames.push({ sender: "client", message: sent });
    return fetch(this.url, { method: "POST", headers: this.#headers(), body: JSON.stringify(sent) });
  }

  notify(method) {
    return this.post({ method });
  }

  /** Asks; gives the last message of the answer, however it comes. */
  async ask(method, params) {
    const response = await this.post({ id: ++this.#ids, method, params });
    this.session ??= response.headers.get("mcp-session-id");
    if (response.headers.get("content-type").startsWith("application/json")) {
      return this.heard(await response.json());
    }
    let last;
    for await (const message of this.events(response)) last = message;
    return last;
  }

  heard(message) {
    this.frames.push({ sender: "server", message });
    return message;
  }

  /** The stream of what belongs to no request. */
  listen() {
    return fetch(this.url, { headers: { ...this.#headers(), accept: "text/event-stream" } });
  }

  /** The messages of a stream, as they come. */
  async *events(response) {
    let text = "";
    for await (const chunk of response.body.pipeThrough(new TextDecoderStream())) {
      const events = (text + chunk).split("\n\n");
      text = events.pop();
      for (const event of events) {
        const data = event.split("\n").filter((line) => line.startsWith("data:"));
        const message = data.map((line) => line.slice(5)).join("\n").trim(); // nothing, where only an id is given
        if (message) yield this.heard(JSON.parse(message));
      }
    }
  }

  end() {
    return fetch(this.url, { method: "DELETE", headers: this.#headers() });
  }
}

/** Uses a server over Streamable HTTP: lists, calls, hears of progress, and of what belongs to no request. */
export async function converse(url) {
  const line = new Conversation(url);
  await line.ask("initialize", CLIENT);
  const accepted = (await line.notify("notifications/initialized")).status;
  await line.ask("tools/list", {});
  const counted = await line.ask("tools/call", { name: "count", arguments: { steps: 3 }, _meta: { progressToken: "p" } });
  const news = line.events(await line.listen());
  const [{ value: notice }] = await Promise.all([news.next(), line.ask("tools/call", { name: "change" })]);
  await news.return();
  const ended = (await line.end()).status;
  return { session: line.session, accepted, ended, counted, notice, frames: line.frames };
}

/** The handshake over a WebSocket; rejects when there is none. */
export async function callUp(url) {
  const frames = [];
  const socket = new WebSocket(url, "mcp");
  const opened = new Promise((open, fail) => {
    socket.onopen = open;
    socket.onerror = () => fail(new Error("no WebSocket"));
  });
  await opened;
  const message = { jsonrpc: "2.0", id: 1, method: "initialize", params: CLIENT };
  frames.push({ sender: "client", message });
  const answered = new Promise((answer) => (socket.onmessage = ({ data }) => answer(JSON.parse(data))));
  socket.send(JSON.stringify(message));
  frames.push({ sender: "server", message: await answered });
  socket.close();
  return { frames };
}

/** What each way in says to this page: a status, or that nothing came. */
export async function knock(place) {
  const body = JSON.stringify({ jsonrpc: "2.0", id: 1, method: "initialize", params: CLIENT });
  const tries = {
    streamable: () => fetch(`http://${place}/mcp`, { method: "POST", headers: HEADERS, body }),
    plain: () => fetch(`http://${place}/mcp`, { method: "POST", headers: { "content-type": "text/plain" }, body }),
    stream: () => fetch(`http://${place}/sse`, { headers: { accept: "text/event-stream" } }),
    messages: () => fetch(`http://${place}/messages?session_id=1`, { method: "POST", headers: HEADERS, body }),
    websocket: () => callUp(`ws://${place}/mcp`),
  };
  const seen = {};
  for (const [name, attempt] of Object.entries(tries)) {
    seen[name] = await attempt().then(
      async (response) => [response.status, await response.text()],
      (error) => [null, error.message],
    );
  }
  return seen;
}

const TRANSPORTS = { http: "StreamableHTTPClientTransport", sse: "SSEClientTransport", websocket: "WebSocketClientTransport" };

/** The client of the official TypeScript SDK, over one of its transports. */
export async function useOfficial(kind, url) {
  const sdk = await import("/official.mjs");
  const frames = [];
  const client = new sdk.Client({ name: "official", version: "1.0" });
  await client.connect(tapped(new sdk[TRANSPORTS[kind]](new URL(url)), frames));
  const { tools } = await client.listTools();
  const counting = { name: "count", arguments: { steps: 3 } };
  const { content } = await client.callTool(counting, undefined, { onprogress: () => {} });
  const { name } = client.getServerVersion();
  await client.close();
  return { name, tools: tools.map((tool) => tool.name), text: content[0].text, frames };
}

/** Keeps a copy of what passes. */
function tapped(transport, frames) {
  const send = transport.send.bind(transport);
  const start = transport.start.bind(transport);
  return Object.assign(transport, {
    start() {
      const deliver = transport.onmessage;
      transport.onmessage = (message) => {
        frames.push({ sender: "server", message });
        deliver(message);
      };
      return start();
    },
    send(message, options) {
      frames.push({ sender: "client", message });
      return send(message, options);
    },
  });
}
