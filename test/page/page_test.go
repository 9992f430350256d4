package page

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/chromedp"
	rlqs "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/keyward/keyward/envoy/module/moduletest"
	"github.com/keyward/keyward/internal/lab"
)

//go:embed contrast.js
var contrast string

// hostile is a value that would be markup, turns what follows around, and hides a letter.
const hostile = "<img src=x onerror=\"window.pwned=1\">\u202egnp.exe\u200b"

// TestPage goes through the page once, in an order that leaves the cluster whole as long as it is needed.
func TestPage(t *testing.T) {
	l := startLab(t)
	a := newAsker(t, l)
	a.traffic(t)
	b := open(t, l.Sidecars[0].Metrics)
	b.view(1400, 1000, "light")
	run := func(name string, test func(b *browser)) {
		t.Run(name, func(t *testing.T) {
			test(&browser{T: t, tab: b.tab})
		})
	}
	run("ring", testRing)
	run("explain", func(b *browser) { testExplain(b, l, a) })
	run("hot keys", func(b *browser) { testHotKeys(t, b, l, a) })
	run("budgets", func(b *browser) { testBudgets(b, l, a) })
	run("quotas", func(b *browser) { testQuotas(b, l) })
	run("modules", func(b *browser) { testModules(b, l) })
	run("rules", testRules)
	run("journal", testJournal)
	run("still", testStill)
	run("paused", testPaused)
	run("looks", testLooks)
	run("names", testNames)
	run("lost member", func(b *browser) { testLost(b, l) })
	run("quiet", func(b *browser) {
		if f := b.takeFaults(); len(f) > 0 {
			b.Errorf("console, policy or requests elsewhere:\n%s", strings.Join(f, "\n"))
		}
	})
	run("xDS server", func(b *browser) { testXDS(b, l) })
	run("member that is unreachable", func(b *browser) { testBroken(b, l) })
	run("unanswered", func(b *browser) {
		b.run(chromedp.Navigate(b.origin + "/ui/"))
		b.await("it is live again", `document.getElementById("live-text").textContent === "live"`)
		l.Sidecars[0].Kill()
		b.await("it shows that the member does not respond", `document.getElementById("live-text").textContent.startsWith("no answer") && document.body.classList.contains("stale")`)
		if !strings.Contains(b.text("#members"), "shop-0") {
			b.Error("what was known is gone")
		}
	})
}

func testRing(b *browser) {
	b.await("three members", `document.querySelectorAll("#members tr").length === 3 && document.querySelectorAll(".owner").length === 3`)
	var colours int
	b.eval(`new Set([...document.querySelectorAll(".owner")].filter((g) => [...g.children].every((p) => p.getTotalLength() > 100)).map((g) => getComputedStyle(g).stroke)).size`, &colours)
	if colours != 3 {
		b.Errorf("%d colors on the ring", colours)
	}
	if s := b.text("#health"); !strings.Contains(s, "No problems: 3 members use the same ring") {
		b.Errorf("health: %s", s)
	}
	if s := b.text("#members"); strings.Count(s, "active") != 3 || strings.Count(s, "this one") != 1 {
		b.Errorf("members: %s", s)
	}
	// The member under the pointer is named in the middle: the upper right of the inner band is the first member's.
	var box struct{ X, Y, Width float64 }
	b.eval(`(() => { const r = document.querySelector(".ring svg").getBoundingClientRect(); return {x: r.x, y: r.y, width: r.width}; })()`, &box)
	b.run(chromedp.MouseEvent("mouseMoved", box.X+box.Width*(0.5+97.0/340*0.7), box.Y+box.Width*(0.5-97.0/340*0.7)))
	b.await("the member that is pointed at", `document.querySelector(".middle").innerText.includes("shop-0") && document.querySelector(".middle").innerText.includes("%")`)
	b.run(chromedp.MouseEvent("mouseMoved", 1, 1))
	b.await("all of them again", `document.querySelector(".middle b").innerText === "3"`)
	if s := b.text("#timeline"); !strings.Contains(s, "a ring of ") || !strings.Contains(s, "rules in force: 10, of api, shop") {
		b.Errorf("time line: %s", s)
	}
}

// testJournal requires that the page shows the journal of a member that has one.
func testJournal(b *browser) {
	b.await("the journal", `document.getElementById("tile-journal").innerText === "up" && /^16 MiB of 1 GiB; [0-9,]+ hits? only in memory$/.test(document.getElementById("tile-journal-more").innerText)`)
	var title string
	b.eval(`document.getElementById("journal").title`, &title)
	if !strings.Contains(title, "windows of at least 1h0m0s; generation 1; 0 counters loaded from 0 journals") {
		b.Errorf("the journal's title: %s", title)
	}
}

// ownerOf returns the owner of a key of the domain api by the served member.
func ownerOf(t *testing.T, l *lab.Lab, domain, key, value string) string {
	t.Helper()
	body, err := lab.Get(t.Context(), "http://"+l.Sidecars[0].Metrics+"/v1/counters?"+url.Values{"domain": {domain}, "key": {key + "=" + value}}.Encode())
	var c struct{ Owner string }
	if err != nil || json.Unmarshal(body, &c) != nil || c.Owner == "" {
		t.Fatalf("owner of %s: %s %v", value, body, err)
	}
	return c.Owner
}

func testExplain(b *browser, l *lab.Lab, a *asker) {
	if err := a.ask(b.Context(), 1, 1000, "shop", "plan", "free"); err != nil {
		b.Fatal(err)
	}
	b.run(chromedp.SetValue("#key-domain", "shop", chromedp.ByQuery), chromedp.SendKeys(".entry-key", "plan", chromedp.ByQuery),
		chromedp.SendKeys(".entry-value", "free\r", chromedp.ByQuery))
	b.await("a refusal", `document.querySelector(".verdict")?.innerText.includes("refused")`)
	s, owner := b.text("#explained"), ownerOf(b.T, l, "shop", "plan", "free")
	if !strings.Contains(s, "1,000 of 1,000 an hour") || !strings.Contains(s, "Counted by") || !strings.Contains(s, "shop.yaml") {
		b.Errorf("explained: %s", s)
	}
	if got := b.text("#explained .owners .who-chip"); got != owner {
		b.Errorf("counted by %q, want %s", got, owner)
	}
	if got := b.text(".middle b"); got != owner {
		b.Errorf("the ring says %q owns it, want %s", got, owner)
	}
	b.await("its place on the ring", `document.querySelectorAll(".ring .pin").length === 1`)
	// What is in the address is explained, too, and what no rule limits is said to be so.
	link := url.Values{"domain": {"shop"}, "descriptor": {`{"entries":[{"key":"plan","value":"silver"}]}`}}.Encode()
	b.eval(fmt.Sprintf("location.hash = %q", link), nil)
	b.await("no rule", `document.querySelector(".verdict")?.innerText.includes("no rule") && document.querySelector(".entry-value").value === "silver"`)
	b.run(chromedp.Click("#clear-key", chromedp.ByQuery))
	b.await("cleared", `document.querySelector("#explained").children.length === 0 && document.querySelectorAll(".ring .pin").length === 0`)
}

func testHotKeys(t *testing.T, b *browser, l *lab.Lab, a *asker) {
	// A value that is this member's, so that it counts it, and is as hostile as it can be.
	value := ""
	for i := 0; value == ""; i++ {
		if v := fmt.Sprint(hostile, i); ownerOf(b.T, l, "api", "tenant", v) == "shop-0" {
			value = v
		}
	}
	a.keepAsking(t, 2, 8*time.Millisecond, "api", "tenant", value)
	b.await("the hot key", `[...document.querySelectorAll("#hot tr")].some((r) => r.innerText.includes("onerror") && r.innerText.includes("/s") && r.querySelector(".who-chip"))`)
	s := b.text("#hot")
	for _, part := range []string{`tenant=<img src=x onerror="window.pwned=1">⟨202E⟩gnp.exe⟨200B⟩`, "of 2,000,000 an hour"} {
		if !strings.Contains(s, part) {
			b.Errorf("%q is not in %s", part, s)
		}
	}
	b.await("it on the ring", `document.querySelectorAll(".ring .hot").length >= 1`)
	b.await("it on the time line", `[...document.querySelectorAll("#timeline .on-hot")].some((e) => e.innerText.includes("<img src=x"))`)
	b.eval(`[...document.querySelectorAll("#hot tr")].find((r) => r.innerText.includes("onerror")).querySelector("button").click()`, nil)
	b.await("it explained", `document.querySelector(".verdict")?.innerText.includes("passes") && document.querySelector("#explained").innerText.includes("onerror")`)
	var found struct {
		Pwned  bool
		Images int
		Value  string
	}
	b.eval(`({pwned: "pwned" in window, images: document.images.length, value: document.querySelector(".entry-value").value})`, &found)
	if found.Pwned || found.Images != 1 || found.Value != value {
		b.Errorf("a key became markup: %+v", found)
	}
	// A value of 2000 letters does not break the page.
	b.eval(fmt.Sprintf("location.hash = %q", url.Values{"domain": {"api"}, "descriptor": {`{"entries":[{"key":"tenant","value":"` + strings.Repeat("long ", 400) + `"}]}`}}.Encode()), nil)
	b.await("a long key", `document.querySelector("#explained").innerText.includes("long long")`)
	b.run(chromedp.Click("#clear-key", chromedp.ByQuery))
}

// testBudgets requires that the card is hidden until the member counts a key with holds, and then shows what is spent, held
// and left.
func testBudgets(b *browser, l *lab.Lab, a *asker) {
	var hidden bool
	if b.eval(`document.getElementById("budgets-box").hidden`, &hidden); !hidden {
		b.Error("it shows budgets without holds")
	}
	mine := func(key string) string {
		for i := 0; ; i++ {
			if v := fmt.Sprint(hostile, i); ownerOf(b.T, l, "api", key, v) == "shop-0" {
				return v
			}
		}
	}
	tokens, streams := mine("tokens"), mine("streams")
	for _, x := range []struct {
		hits    uint32
		entries []string
	}{
		{0, []string{"tokens", tokens, "keyward.id", "1"}}, {0, []string{"tokens", tokens, "keyward.id", "2"}},
		{120, []string{"tokens", tokens, "keyward.id", "1", "keyward.hold", "commit"}}, {0, []string{"streams", streams, "keyward.id", "1"}},
	} {
		if err := a.ask(b.Context(), 0, x.hits, "api", x.entries...); err != nil {
			b.Fatal(err)
		}
	}
	b.await("both keys", `document.querySelectorAll("#budgets tr").length === 2 && !document.getElementById("budgets-box").hidden`)
	s := b.text("#budgets")
	for _, part := range []string{"120 spent, 300 held, 580 left of 1,000 an hour", "1 of 16 in flight", `tokens=<img src=x onerror="window.pwned=1">`} {
		if !strings.Contains(s, part) {
			b.Errorf("%q is not in %s", part, s)
		}
	}
	b.eval(`[...document.querySelectorAll("#budgets tr")].find((r) => r.innerText.includes("held")).querySelector("button").click()`, nil)
	b.await("it explained", `document.querySelector("#explained").innerText.includes("420 of 1,000")`)
	b.run(chromedp.Click("#clear-key", chromedp.ByQuery))
}

// testQuotas requires that the card is hidden until an Envoy has a stream, and then shows what each Envoy has.
func testQuotas(b *browser, l *lab.Lab) {
	var hidden bool
	if b.eval(`document.getElementById("quotas-box").hidden`, &hidden); !hidden {
		b.Error("it shows Envoys that spend limits, but none does")
	}
	conn, err := grpc.NewClient("passthrough:///"+l.Sidecars[0].RLS, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(b.Context(), "x-keyward-envoy", "edge-<img src=x>"))
	defer cancel()
	stream, err := rlqs.NewRateLimitQuotaServiceClient(conn).StreamRateLimitQuotas(ctx)
	if err != nil {
		b.Fatal(err)
	}
	go func() {
		for {
			if _, err := stream.Recv(); err != nil {
				return
			}
		}
	}()
	id := &rlqs.BucketId{Bucket: map[string]string{"0.spent": hostile}}
	if err := stream.Send(&rlqs.RateLimitQuotaUsageReports{Domain: "api", BucketQuotaUsages: []*rlqs.RateLimitQuotaUsageReports_BucketQuotaUsage{
		{BucketId: id, TimeElapsed: durationpb.New(0), NumRequestsDenied: 5},
	}}); err != nil {
		b.Fatal(err)
	}
	b.await("the key and the Envoy", `document.querySelectorAll("#quotas tr").length === 2 && document.querySelector("#quotas").innerText.includes("in use for")`)
	for _, part := range []string{`spent=<img src=x onerror="window.pwned=1">`, "limit 6,000 a minute", `edge-<img src=x`, " left", ", reported "} {
		if s := b.text("#quotas"); !strings.Contains(s, part) {
			b.Errorf("%q is not in %s", part, s)
		}
	}
	cancel()
	b.await("the Envoy is gone", `!document.querySelector("#quotas .envoy")`)
}

// testModules requires that the card shows an Envoy with the module while it is connected, with what it has of a key, and
// connections that were refused.
func testModules(b *browser, l *lab.Lab) {
	dial := func() *moduletest.ModuleClient {
		c, err := moduletest.Dial(moduleSocket(l, l.Sidecars[0].Name))
		if err != nil {
			b.Fatal(err)
		}
		return c
	}
	envoy := dial()
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	var load sync.WaitGroup
	load.Go(func() {
		for tick := time.NewTicker(10 * time.Millisecond); ctx.Err() == nil; <-tick.C {
			if out, _ := envoy.Spend(1, "api", "tenant", hostile); out != moduletest.Taken {
				_ = envoy.Interest(1, "api", "tenant", hostile)
			}
		}
	})
	b.await("the Envoy and the key", `!document.getElementById("quotas-box").hidden && document.querySelectorAll("#modules tr").length === 2 && / of [0-9]+ left/.test(document.querySelector("#modules").innerText) && /[1-9][0-9,]* without a call; calls: /.test(document.querySelector("#modules").innerText)`)
	for _, part := range []string{`tenant=<img src=x onerror="window.pwned=1">`, "ABI v0.2.0, connected for ", "1 of 16,384 leases in use", " without a lease, "} {
		if s := b.text("#modules"); !strings.Contains(s, part) {
			b.Errorf("%q is not in %s", part, s)
		}
	}
	other := dial()
	if err := other.Send([]byte("nonsense")); err != nil {
		b.Fatal(err)
	}
	<-other.Done()
	cancel()
	load.Wait()
	envoy.Close()
	b.await("the Envoy is gone, and one was refused", `!document.querySelector("#modules tr") && document.getElementById("modules-note").innerText.includes("Refused connections: 1 malformed")`)
}

func testRules(b *browser) {
	b.await("hits and refusals", `[...document.querySelectorAll("#rules tr.rule")].some((r) => r.innerText.includes("/login") && /\d+, \d+ %/.test(r.innerText))`)
	if s := b.text("#rules"); !strings.Contains(s, "unlimited") || !strings.Contains(s, "shadow") || !strings.Contains(s, "token bucket") || !strings.Contains(s, "10 a minute") {
		b.Errorf("rules: %s", s)
	}
	b.run(chromedp.SendKeys("#rule-filter", "search", chromedp.ByQuery))
	b.await("one rule", `document.querySelectorAll("#rules tr.rule").length === 1`)
	b.eval(`{ const f = document.getElementById("rule-filter"); f.value = ""; f.dispatchEvent(new Event("input")); }`, nil)
	b.await("all rules again", `document.querySelectorAll("#rules tr.rule").length === 10`)
	if s := b.text("#versions"); !strings.Contains(s, "in force") {
		b.Errorf("versions: %s", s)
	}
}

// What is on the page stays the same element, and keeps the focus, while numbers change.
func testStill(b *browser) {
	b.eval(`(() => { window.kept = ["#members tr", "#rules tr.rule", ".owner", "#timeline li:last-child"].map((s) => document.querySelector(s)); document.querySelectorAll(".member")[1].focus(); })()`, nil)
	from := b.requestsSoFar()
	ctx, cancel := context.WithTimeout(b.Context(), patience)
	defer cancel()
	if err := lab.Await(ctx, "three more rounds", func(context.Context) error {
		if n := b.requestsSoFar() - from; n < 15 {
			return fmt.Errorf("%d requests", n)
		}
		return nil
	}); err != nil {
		b.Fatal(err)
	}
	var kept []bool
	b.eval(`[...window.kept.map((n) => n.isConnected), document.activeElement === document.querySelectorAll(".member")[1]]`, &kept)
	for i, k := range kept {
		if !k {
			b.Errorf("element %d was drawn again: %v", i, kept)
		}
	}
}

func testPaused(b *browser) {
	b.eval(`Object.defineProperty(document, "hidden", {configurable: true, get: () => true}); document.dispatchEvent(new Event("visibilitychange"))`, nil)
	b.await("paused", `document.getElementById("live-text").textContent === "paused"`)
	time.Sleep(500 * time.Millisecond) // what was under way ends
	from := b.requestsSoFar()
	time.Sleep(1500 * time.Millisecond)
	if n := b.requestsSoFar() - from; n > 0 {
		b.Errorf("%d requests while the page is hidden", n)
	}
	b.eval(`delete document.hidden; document.dispatchEvent(new Event("visibilitychange"))`, nil)
	b.await("live again", `document.getElementById("live-text").textContent === "live"`)
	if b.requestsSoFar() == from {
		b.Error("no request since it is live again")
	}
}

// Both themes have contrast, by the system's choice and by the button; nothing is wider than the narrowest screen.
func testLooks(b *browser) {
	for _, theme := range []string{"light", "dark"} {
		b.view(1400, 1000, theme)
		b.hasContrast(theme)
	}
	b.run(chromedp.Click("#theme", chromedp.ByQuery))
	var background string
	b.eval(`getComputedStyle(document.documentElement).backgroundColor`, &background)
	if background != "rgb(244, 246, 249)" {
		b.Errorf("the button left a background of %s", background)
	}
	b.hasContrast("light by choice")
	b.run(chromedp.Click("#theme", chromedp.ByQuery))
	b.view(360, 760, "dark")
	var wide int
	b.eval(`document.documentElement.scrollWidth`, &wide)
	if wide > 360 {
		b.Errorf("%d pixels wide on a screen of 360", wide)
	}
	b.view(1400, 1000, "light")
	b.eval(`localStorage.clear(); delete document.documentElement.dataset.theme`, nil)
}

func (b *browser) hasContrast(theme string) {
	b.Helper()
	var found struct {
		Seen int
		Weak []string
	}
	b.eval(contrast, &found)
	if found.Seen < 80 {
		b.Errorf("%s: only %d texts and colors were measured", theme, found.Seen)
	}
	for _, w := range found.Weak {
		b.Errorf("%s: %s", theme, w)
	}
}

// testNames holds that whatever can be operated says what it is.
func testNames(b *browser) {
	operable := map[string]bool{"button": true, "link": true, "textbox": true, "searchbox": true, "combobox": true, "region": true, "img": true}
	seen := 0
	b.run(chromedp.ActionFunc(func(ctx context.Context) error {
		// Not accessibility.GetFullAXTree: it refuses property names that are newer than the module.
		var tree struct {
			Nodes []struct {
				Ignored bool `json:"ignored"`
				Role    struct {
					Value string `json:"value"`
				} `json:"role"`
				Name struct {
					Value string `json:"value"`
				} `json:"name"`
			} `json:"nodes"`
		}
		err := cdp.Execute(ctx, "Accessibility.getFullAXTree", nil, &tree)
		for _, n := range tree.Nodes {
			if n.Ignored || !operable[n.Role.Value] {
				continue
			}
			seen++
			if strings.TrimSpace(n.Name.Value) == "" {
				b.Errorf("a %s without a name", n.Role.Value)
			}
		}
		return err
	}))
	if seen < 20 {
		b.Errorf("only %d elements have a role", seen)
	}
}

// An xDS server has a ring and members, and neither keys nor rules: its page says so.
func testXDS(b *browser, l *lab.Lab) {
	x, err := l.AddXDS("xds-0")
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(b.Context(), patience)
	defer cancel()
	if err := l.AwaitRing(ctx, "shop-0", "shop-1"); err != nil {
		b.Fatal(err)
	}
	b.run(chromedp.Navigate("http://" + x.Metrics + "/"))
	b.await("its ring", `document.getElementById("live-text").textContent === "live" && document.querySelectorAll(".owner").length === 2`)
	var hidden bool
	if b.eval(`document.getElementById("journal").hidden`, &hidden); !hidden {
		b.Error("an xDS server shows a journal")
	}
	if s := b.text("main"); !strings.Contains(s, "observer") || !strings.Contains(s, "a ring of 2") || !strings.Contains(s, "has no rules of its own") || !strings.Contains(s, "counts nothing") {
		b.Errorf("the page says:\n%s", s)
	}
}

// The others' pages name a member that is unreachable, and its own page shows first why it stays off the ring.
func testBroken(b *browser, l *lab.Lab) {
	dir := b.TempDir()
	if out, err := exec.CommandContext(b.Context(), filepath.Join(l.Bin, "keyward"), "certs", "--dir", dir).CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	well := l.Sidecars
	s, err := l.AddSidecar("shop-9", "--tls-cert", filepath.Join(dir, "sidecar.crt"), "--tls-key", filepath.Join(dir, "sidecar.key"), "--tls-ca", filepath.Join(dir, "ca.crt"))
	if err != nil {
		b.Fatal(err)
	}
	l.Sidecars = well
	b.run(chromedp.Navigate("http://" + well[0].Metrics + "/"))
	b.await("its name on another's page", `document.getElementById("health").innerText.includes("shop-9 and this member cannot exchange requests")`)
	if text := b.text("#health"); strings.Contains(text, "No problems") {
		b.Errorf("health: %s", text)
	}
	b.run(chromedp.Navigate("http://" + s.Metrics + "/"))
	b.await("the cause on its own page", `document.getElementById("health").innerText.includes("is not on the ring and not ready: has streams with 0 of 2 other members")`)
	if text := b.text("#health"); !strings.HasPrefix(strings.TrimSpace(text), "This member is not on the ring") {
		b.Errorf("health: %s", text)
	}
	if err := s.Stop(20 * time.Second); err != nil {
		b.Error(err)
	}
}

func testLost(b *browser, l *lab.Lab) {
	l.Sidecars[2].Kill()
	b.await("the loss in words", `document.getElementById("health").innerText.includes("shop-2 failed")`)
	b.await("a ring of two", `document.querySelectorAll(".owner").length === 2 && document.querySelectorAll("#members tr").length === 3`)
	if s := b.text("#members"); !strings.Contains(s, "lost") {
		b.Errorf("members: %s", s)
	}
	b.await("the loss on the time line", `document.querySelector("#timeline .on-lost")?.innerText.includes("shop-2 failed")`)
	if s := b.text("#health"); strings.Contains(s, "No problems") {
		b.Errorf("health: %s", s)
	}
}

// TestPictures draws the pictures of docs/pictures and some more, after a minute of traffic.
func TestPictures(t *testing.T) {
	if os.Getenv("KEYWARD_SHOTS") == "" {
		t.Skip("KEYWARD_SHOTS=DIR keeps pictures")
	}
	l := startLab(t)
	a := newAsker(t, l)
	a.traffic(t)
	b := open(t, l.Sidecars[1].Metrics) // which owns what is asked for most
	b.eval(fmt.Sprintf("location.hash = %q", url.Values{"domain": {"api"}, "descriptor": {`{"entries":[{"key":"tenant","value":"acme"}]}`}}.Encode()), nil)
	time.Sleep(time.Minute)
	for _, x := range []struct {
		name   string
		width  int64
		theme  string
		killed bool
	}{{"page-light", 1280, "light", false}, {"page-dark", 1280, "dark", false}, {"page-narrow", 390, "light", false}, {"page-lost", 1280, "light", true}} {
		if x.killed {
			l.Sidecars[2].Kill()
			b.await("the loss", `document.getElementById("health").innerText.includes("shop-2 failed")`)
		}
		b.view(x.width, 900, x.theme)
		b.shot(x.name)
	}
}
