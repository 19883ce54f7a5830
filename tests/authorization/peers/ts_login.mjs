// The official TypeScript SDK as a client that has to log in: calls tools one after the other.
//
//     node ts_login.mjs <npm folder> URL REVISION [--dpop] TOOL ...
//
// It prints a line of JSON: what each call gave, and how many pages had been opened for the person by then.
import { createRequire } from "node:module";
import { resolve } from "node:path";

const [folder, url, revision, ...rest] = process.argv.slice(2);
const require = createRequire(resolve(folder, "package.json"));
const sdk = require("@modelcontextprotocol/client");

const REDIRECT_URI = "http://127.0.0.1:33419/callback";
const MODERN = "2026-07-28";

/** Where a page leads, as a browser follows it with its cookies. */
async function sentBack(page) {
  const cookies = new Map();
  while (!page.href.startsWith(REDIRECT_URI)) {
    const cookie = [...cookies].map(([name, value]) => `${name}=${value}`).join("; ");
    const answer = await fetch(page, { redirect: "manual", headers: { cookie } });
    for (const line of answer.headers.getSetCookie()) {
      const [name, ...value] = line.split(";")[0].split("=");
      cookies.set(name, value.join("="));
    }
    if (!answer.headers.has("location")) throw new Error(`${answer.status} at ${page}`);
    page = new URL(answer.headers.get("location"), page);
  }
  return page.searchParams;
}

/** A token store in memory. */
class Person {
  opened = [];
  redirectUrl = REDIRECT_URI;
  clientMetadata = { client_name: "official", redirect_uris: [REDIRECT_URI], token_endpoint_auth_method: "none" };
  clientInformation = () => this.client;
  saveClientInformation = (client) => void (this.client = client);
  tokens = () => this.kept;
  saveTokens = (tokens) => void (this.kept = tokens);
  codeVerifier = () => this.verifier;
  saveCodeVerifier = (verifier) => void (this.verifier = verifier);
  redirectToAuthorization = (page) => void this.opened.push(page);
}

const person = new Person();
const tools = rest.filter((word) => word !== "--dpop");
if (tools.length < rest.length) {
  const session = await sdk.DpopSession.create();
  person.dpop = () => session;
}

/** Does something, and once more after a login if it needs one. */
async function withLogin(transport, doing) {
  try {
    return await doing(transport());
  } catch (error) {
    if (!(error instanceof sdk.UnauthorizedError)) throw error;
    const used = transport();
    await used.finishAuth(await sentBack(person.opened.at(-1)));
    return await doing(used);
  }
}

const line = () => new sdk.StreamableHTTPClientTransport(new URL(url), { authProvider: person });
const versionNegotiation = revision >= MODERN ? { mode: { pin: revision } } : undefined;
const begin = () => new sdk.Client({ name: "official", version: "1.0" }, { versionNegotiation });
let client = begin();
await withLogin(line, async (transport) => {
  client = begin();
  await client.connect(transport);
});
const said = [];
for (const name of tools) {
  const result = await withLogin(
    () => client.transport,
    () => client.callTool({ name, arguments: {} }),
  );
  said.push([result.content[0].text, person.opened.length]);
}
await client.close();
process.stdout.write(`${JSON.stringify(said)}\n`);
process.exit();
