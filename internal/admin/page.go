package admin

import (
	"embed"
	"io"
	"io/fs"
	"net/http"
	"strings"

	"github.com/keyward/keyward/internal/api"
)

// assets holds the page: HTML, CSS and JavaScript modules without a build step.
//
//go:embed page
var assets embed.FS

// pagePolicy restricts the page to what this port serves. It forbids inline code, text that becomes markup, and
// framing.
const pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; " +
	"form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// assetsPage serves the assets below /ui/.
func assetsPage() http.Handler {
	root, err := fs.Sub(assets, "page")
	if err != nil {
		panic(err) // the name is a constant
	}
	files := http.StripPrefix("/ui/", http.FileServerFS(root))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Security-Policy", pagePolicy)
		files.ServeHTTP(w, r)
	})
}

// secureHeaders adds headers that forbid caching, content sniffing and framing to every response.
func secureHeaders(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		next.ServeHTTP(w, r)
	})
}

// index serves GET /. Browsers are redirected to the page; other clients get a list of the endpoints.
func index(list string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Add("Vary", "Accept")
		if strings.Contains(r.Header.Get("Accept"), "text/html") {
			http.Redirect(w, r, "ui/", http.StatusFound) // relative: also behind a proxy that adds a prefix
			return
		}
		_, _ = io.WriteString(w, list)
	}
}

// pageRoutes adds the page and the endpoints that only it uses.
func pageRoutes(mux *http.ServeMux, page func(pattern string, serve http.HandlerFunc), o *Options) {
	mux.Handle("GET /ui/", assetsPage())
	if o.RingMap != nil {
		page("/v1/ring", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, o.RingMap()) })
	}
	if o.RuleTree != nil {
		page("/v1/rules", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, o.RuleTree()) })
	}
	if o.Timeline != nil {
		page("/v1/timeline", func(w http.ResponseWriter, _ *http.Request) {
			writeJSON(w, api.TimelineEvents{Events: o.Timeline()})
		})
	}
}
