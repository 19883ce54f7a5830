// An authorization server that nobody here has written: npm's oidc-provider, on a loopback port that the system
// chooses.
//
//     node provider.mjs <npm folder>
//
// It writes one line of JSON when it listens, {"issuer"}, and answers each line that it reads with another: commands
// are below, by name, and each is given the rest of its line. It ends when its standard input does. Whoever opens a
// page is logged in and agrees without being asked: who that is stands in the header `x-person`, and "nobody" agrees
// to nothing.
import { generateKeyPairSync, randomBytes } from "node:crypto";
import { createServer } from "node:http";
import { resolve } from "node:path";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

console.info = console.warn = () => {}; // that it is not fit for production

const { default: Provider, errors } = await import(
  pathToFileURL(resolve(process.argv[2], "node_modules/oidc-provider/lib/index.js"))
);

const NO_PAGES = { redirect_uris: [], response_types: [], grant_types: [] };
const SCOPES = "notes:read notes:write";
const DEFAULTS = {
  lifetime: 3600, // of an access token, in seconds
  clock: 0, // seconds that its clock is ahead of ours
  nonces: false, // whether a DPoP proof needs one
  metadata: true, // whether a client's id may be the address of its metadata
  registration: true, // whether clients may register themselves
};
const settings = { ...DEFAULTS };
const documents = new Map(); // what the web has at an address: clients' metadata
let told = []; // the requests that came, without what is secret in them
let keys = [newKey()];
let provider, answering;

const now = Date.now;
Date.now = () => now() + settings.clock * 1000;

/** Everything that the provider remembers, whichever keys it has. */
const kept = new Map();
class Kept {
  constructor(model) {
    this.model = model;
    this.all = kept.get(model) ?? new Map();
    kept.set(model, this.all);
  }
  async upsert(id, payload) {
    const { scope, ...rest } = payload;
    this.all.set(id, this.model === "Client" ? rest : { ...payload }); // it may ask for more than it registered for
  }
  async find(id) {
    return this.all.get(id);
  }
  async findByUid(uid) {
    return [...this.all.values()].find((payload) => payload.uid === uid);
  }
  async findByUserCode() {}
  async consume(id) {
    this.all.get(id).consumed = Math.floor(Date.now() / 1000);
  }
  async destroy(id) {
    this.all.delete(id);
  }
  async revokeByGrantId(grant) {
    for (const [id, payload] of this.all) if (payload.grantId === grant) this.all.delete(id);
  }
}

function newKey() {
  const key = generateKeyPairSync("ec", { namedCurve: "P-256" }).privateKey.export({ format: "jwk" });
  return { ...key, kid: randomBytes(8).toString("hex"), alg: "ES256", use: "sig" };
}

/** A resource is any server on this machine; at /opaque are those that ask us about each token. */
function resourceServer(_ctx, resource) {
  const url = URL.parse(resource);
  if (url?.hostname !== "127.0.0.1") throw new errors.InvalidTarget();
  const opaque = url.pathname.startsWith("/opaque");
  return {
    scope: SCOPES,
    audience: resource,
    accessTokenTTL: settings.lifetime,
    accessTokenFormat: opaque ? "opaque" : "jwt",
    ...(!opaque && { jwt: { sign: { alg: "ES256" } } }),
  };
}

const secrets = { cookies: [randomBytes(16).toString("hex")], nonces: randomBytes(32) };

function configuration() {
  return {
    adapter: Kept,
    jwks: { keys },
    cookies: { keys: secrets.cookies },
    clients: [
      { client_id: "introspector", client_secret: "told-to-the-server", ...NO_PAGES },
      { client_id: "robot", client_secret: "told-to-the-robot", ...NO_PAGES, grant_types: ["client_credentials"] },
      {
        client_id: "desk",
        application_type: "native",
        token_endpoint_auth_method: "none",
        redirect_uris: ["http://127.0.0.1/callback"],
        grant_types: ["authorization_code", "refresh_token"],
      },
    ],
    clientAuthMethods: ["none", "client_secret_basic", "client_secret_post", "private_key_jwt"],
    clientDefaults: { id_token_signed_response_alg: "ES256" },
    pkce: { required: () => true },
    responseTypes: ["code"],
    scopes: ["openid", "offline_access", ...SCOPES.split(" ")],
    ttl: { Interaction: 86400, Session: 86400, Grant: 86400, RefreshToken: 86400 }, // more than its clock is ever set
    interactions: { url: (_ctx, interaction) => `/interaction/${interaction.uid}` },
    findAccount: (_ctx, sub) => ({ accountId: sub, claims: () => ({ sub }) }),
    features: {
      devInteractions: { enabled: false },
      registration: { enabled: settings.registration },
      introspection: { enabled: true, allowedPolicy: (_ctx, client) => client.clientId === "introspector" },
      revocation: { enabled: true, allowedPolicy: (_ctx, client, token) => token.clientId === client.clientId },
      clientCredentials: { enabled: true },
      dPoP: { enabled: true, nonceSecret: secrets.nonces, requireNonce: () => settings.nonces },
      resourceIndicators: { enabled: true, getResourceServerInfo: resourceServer, defaultResource: () => [] },
      clientIdMetadataDocument: { enabled: settings.metadata, ack: "draft-02" },
    },
    fetch: async (url) => {
      const document = documents.get(String(url));
      return document ? Response.json(document) : new Response("", { status: 404 });
    },
  };
}

/** The provider anew: what it is made of may have changed, what it remembers has not. */
function make() {
  provider = new Provider(issuer, configuration());
  provider.use(async (ctx, next) => {
    await next();
    const { grant_type, resource, scope, client_id, response_type, prompt } = { ...ctx.oidc?.params };
    told.push({ path: ctx.path, status: ctx.status, grant_type, resource, scope, client_id, response_type, prompt });
  });
  provider.on("server_error", (_ctx, error) => process.stderr.write(`${error.stack}\n`));
  answering = provider.callback();
}

/** Nobody looks at a page: whoever comes is who the header says, and agrees to all that is asked. */
async function agree(request, response) {
  const person = request.headers["x-person"] ?? "ada";
  if (person === "nobody") return provider.interactionFinished(request, response, { error: "access_denied" });
  const { params, session, grantId } = await provider.interactionDetails(request, response);
  const { clientId, accountId } = { clientId: params.client_id, accountId: session?.accountId ?? person };
  const grant = (grantId && (await provider.Grant.find(grantId))) || new provider.Grant({ clientId, accountId });
  grant.addOIDCScope(params.scope);
  for (const resource of [params.resource ?? []].flat()) grant.addResourceScope(resource, params.scope);
  const agreed = { login: { accountId }, consent: { grantId: await grant.save() } };
  await provider.interactionFinished(request, response, agreed);
}

async function answer(request, response) {
  try {
    await (request.url.startsWith("/interaction/") ? agree(request, response) : answering(request, response));
  } catch (error) {
    response.writeHead(500).end(String(error.stack));
  }
}

const COMMANDS = {
  /** Other settings than the defaults, from now on. */
  set(changes) {
    Object.assign(settings, DEFAULTS, changes);
    make();
  },
  /** A new key to sign with. The one before is still published, unless `forget`. */
  rotate({ forget = false }) {
    keys = [newKey(), ...(forget ? [] : keys)];
    make();
  },
  /** Takes back everything that a person has agreed to; signed tokens stay good until they expire. */
  revoke({ person }) {
    for (const [id, grant] of kept.get("Grant") ?? []) {
      if (grant.accountId !== person) continue;
      kept.get("Grant").delete(id);
      for (const model of kept.values()) {
        for (const [key, payload] of model) if (payload.grantId === id) model.delete(key);
      }
    }
  },
  /** What the web has at an address. */
  publish({ url, document }) {
    documents.set(url, document);
  },
  /** The requests that came since this was last asked. */
  told() {
    const since = told;
    told = [];
    return since;
  },
};

const server = createServer(answer);
await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
const issuer = `http://127.0.0.1:${server.address().port}`;
make();
const say = (value) => process.stdout.write(`${JSON.stringify(value ?? null)}\n`);
say({ issuer });
for await (const line of createInterface({ input: process.stdin })) {
  const { command, ...rest } = JSON.parse(line);
  say(COMMANDS[command](rest));
}
process.exit();
