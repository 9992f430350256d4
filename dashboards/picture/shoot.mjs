// Serves the built page, the boards and a Prometheus, and takes a screenshot of every board with Chromium:
// node shoot.mjs DIST BOARDS PROMETHEUS SECONDS OUT
import { createServer } from 'node:http';
import { readFile, readdir } from 'node:fs/promises';
import { extname, join } from 'node:path';
import { createRequire } from 'node:module';

const [dist, boards, prometheus, seconds, out] = process.argv.slice(2);
// The packages are next to the built page, not next to this file.
const puppeteer = createRequire(join(dist, 'index.html'))('puppeteer-core');
const types = { '.html': 'text/html', '.js': 'text/javascript', '.css': 'text/css', '.json': 'application/json' };
const server = createServer(async (req, res) => {
  try {
    const { pathname, search } = new URL(req.url, 'http://x');
    if (pathname.startsWith('/api/')) {
      const answer = await fetch(prometheus + pathname + search);
      const body = await answer.text();
      res.writeHead(answer.status, { 'content-type': 'application/json' }).end(body);
      return;
    }
    const file = pathname.startsWith('/boards/') ? join(boards, pathname.slice(8)) : join(dist, pathname === '/' ? 'index.html' : pathname);
    const body = await readFile(file);
    res.writeHead(200, { 'content-type': types[extname(file)] ?? 'application/octet-stream' }).end(body);
  } catch {
    res.writeHead(404).end();
  }
});
await new Promise((ready) => server.listen(0, '127.0.0.1', ready));
const to = Math.floor(Date.now() / 1000) - 2, from = to - Number(seconds);
const browser = await puppeteer.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: ['--no-sandbox', '--hide-scrollbars'] });
for (const name of (await readdir(boards)).filter((f) => /^keyward-.*\.json$/.test(f))) {
  const board = JSON.parse(await readFile(join(boards, name)));
  const rows = Math.max(...board.panels.map((p) => p.gridPos.y + p.gridPos.h));
  const id = name.replace('.json', ''), picture = join(out, `dashboards-${id.replace('keyward-', '')}.png`);
  const page = await browser.newPage();
  page.on('pageerror', (e) => console.error(`${id}: ${e.message}`));
  await page.setViewport({ width: 1616, height: rows * 38 + 90 });
  await page.goto(`http://127.0.0.1:${server.address().port}/?board=${id}&from=${from}&to=${to}`);
  await page.waitForFunction(() => document.title === 'drawn', { timeout: 120_000 });
  await page.screenshot({ path: picture });
  await page.close();
  console.log(picture);
}
await browser.close();
server.close();
