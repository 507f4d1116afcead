package dash

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/watch"
	"github.com/shoal-ml/shoal/watch/follow"
	"github.com/shoal-ml/shoal/web"
)

const (
	// tick is how often the page gets what is new.
	tick = time.Second
	// refusalDelay is how long a wrong token waits for its answer; one waits at a time.
	refusalDelay = time.Second
	// maxRefusals is how many wrong tokens wait at a time; more are refused at once. What protects
	// the page are the 128 bits of its token.
	maxRefusals = 8
	// maxStreams is how many pages are open at a time.
	maxStreams = 16
	// maxLog is how many bytes of the output of a worker are sent.
	maxLog = 64 << 10
	// sendPatience is how long a page may take to receive what is sent at a time.
	sendPatience = 20 * time.Second
)

// policy is what the page may load: what this server has, and nothing in the page itself.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; " +
	"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// Page serves the page of a run. OpenPage makes one, which ends with its context; Wait waits for
// that. It only reads: who has logged in can change nothing either. Each request runs its handler
// on a goroutine of its own; what stands above mu does not change.
type Page struct {
	group  *group.Group
	port   string
	host   string
	token  string // what people have, in the address
	cookie string // what a browser has that has shown the token
	tick   time.Duration
	delay  time.Duration // as refusalDelay

	refusing chan struct{} // has an element for each wrong token that waits
	turn     chan struct{} // has an element while a wrong token waits for its time
	streams  chan struct{} // has an element for each page that is open

	files *follow.Follower // for the output of workers alone

	mu   sync.Mutex // guards what follows, and is held while run is read
	run  *follow.Follower
	read time.Time // when it was read last
}

// OpenPage listens at HOST:PORT, and serves the page of a run from now on. flag is how the user has
// named the address, for the error.
func OpenPage(ctx context.Context, run *follow.Follower, flag, address string) (*Page, error) {
	return openPage(ctx, run, flag, address, tick, refusalDelay)
}

// openPage is OpenPage with other times: of the ticks, and of what a wrong token waits.
func openPage(ctx context.Context, run *follow.Follower, flag, address string, tick,
	delay time.Duration) (*Page, error) {
	l, err := listen(flag, address)
	if err != nil {
		return nil, err
	}
	p := &Page{group: group.New(ctx), files: run, run: run.RoughCopy(), token: newSecret(),
		cookie: newSecret(), tick: tick, delay: delay, refusing: make(chan struct{}, maxRefusals),
		turn: make(chan struct{}, 1), streams: make(chan struct{}, maxStreams)}
	bound := l.Addr().(*net.TCPAddr)
	p.port = strconv.Itoa(bound.Port)
	p.host, _, _ = net.SplitHostPort(address)
	if p.host == "" || net.ParseIP(p.host).IsUnspecified() {
		p.host = "127.0.0.1"
	}
	p.group.Go("page", func(ctx context.Context) error {
		return serve(ctx, l, newHostGuard(address, p.handler()))
	})
	p.group.Go("first reading", func(ctx context.Context) error {
		err := p.readAll(ctx, run)
		if ctx.Err() != nil {
			return nil
		}
		return err
	})
	return p, nil
}

// readAll reads a run before the browser comes: roughly, which is soon done, and then, where that
// has left something out, as run reads it, which the page has from then on.
func (p *Page) readAll(ctx context.Context, run *follow.Follower) error {
	if _, _, err := p.newsSince(ctx, ""); err != nil {
		return err
	}
	p.mu.Lock()
	partial := p.run.IsPartial()
	p.mu.Unlock()
	if !partial {
		return nil
	}
	now := time.Now()
	if err := run.Poll(ctx, now); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.run, p.read = run, now
	return nil
}

// newSecret returns 128 random bits as text. Any goroutine may call it.
func newSecret() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // it ends the program where it fails
	return hex.EncodeToString(b)
}

// URL is the address of the page, with its token.
func (p *Page) URL() string {
	return fmt.Sprintf("http://%s/#token=%s", net.JoinHostPort(p.host, p.port), p.token)
}

// Wait blocks until the context of the page ends, or the server fails.
func (p *Page) Wait() error { return p.group.Wait() }

// handler returns what answers requests.
func (p *Page) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", p.answerFile("index.html", "text/html; charset=utf-8"))
	mux.HandleFunc("GET /page.js", p.answerFile("page.js", "text/javascript; charset=utf-8"))
	mux.HandleFunc("GET /page.css", p.answerFile("page.css", "text/css; charset=utf-8"))
	mux.HandleFunc("GET /licenses.txt", p.answerFile("licenses.txt", "text/plain; charset=utf-8"))
	mux.HandleFunc("POST /login", p.answerLogin)
	mux.HandleFunc("GET /state", p.behindLogin(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNoContent)
	}))
	mux.HandleFunc("GET /events", p.behindLogin(p.answerEvents))
	mux.HandleFunc("GET /log", p.behindLogin(p.answerLog))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Content-Security-Policy", policy)
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("Cross-Origin-Resource-Policy", "same-origin")
		header.Set("Cache-Control", "no-store")
		mux.ServeHTTP(w, r)
	})
}

// answerFile answers with a file of the page. It has nothing of the run, so everybody gets it.
func (p *Page) answerFile(name, kind string) http.HandlerFunc {
	text, err := fs.ReadFile(web.Files, "dist/"+name)
	return func(w http.ResponseWriter, r *http.Request) {
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", kind)
		_, _ = w.Write(text)
	}
}

// cookieName is the name of the cookie. Browsers do not tell the ports of a host apart, and several
// pages may be open.
func (p *Page) cookieName() string { return "shoal_dash_" + p.port }

// isSecret reports in constant time whether a text is a secret. It is pure.
func isSecret(text, secret string) bool {
	return subtle.ConstantTimeCompare([]byte(text), []byte(secret)) == 1
}

// answerLogin takes the token as the body of a request, and answers with the cookie.
func (p *Page) answerLogin(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 256))
	if err != nil || !isSecret(string(body), p.token) {
		p.refuse(w, r)
		return
	}
	http.SetCookie(w, &http.Cookie{Name: p.cookieName(), Value: p.cookie, Path: "/",
		HttpOnly: true, SameSite: http.SameSiteStrictMode})
	w.WriteHeader(http.StatusNoContent)
}

// behindLogin answers by f who has the cookie.
func (p *Page) behindLogin(f http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c, err := r.Cookie(p.cookieName())
		if err != nil || !isSecret(c.Value, p.cookie) {
			p.refuse(w, r)
			return
		}
		f(w, r)
	}
}

// refuse answers 401 after a while, to up to maxRefusals at a time, and else 429 at once.
func (p *Page) refuse(w http.ResponseWriter, r *http.Request) {
	select {
	case p.refusing <- struct{}{}:
		defer func() { <-p.refusing }()
		select {
		case p.turn <- struct{}{}:
			timer := time.NewTimer(p.delay)
			select {
			case <-timer.C:
			case <-r.Context().Done():
			}
			timer.Stop()
			<-p.turn
		case <-r.Context().Done():
		}
	default:
		w.Header().Set("Connection", "close")
		http.Error(w, "too many wrong tokens", http.StatusTooManyRequests)
		return
	}
	http.Error(w, "the token is missing or wrong: open the address that shoal dash has printed",
		http.StatusUnauthorized)
}

// answerLog answers with the newest output of a worker.
func (p *Page) answerLog(w http.ResponseWriter, r *http.Request) {
	worker, err := strconv.ParseUint(r.URL.Query().Get("worker"), 10, 31)
	if err != nil {
		http.Error(w, "worker is no number of a worker", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	text, err := p.files.Log(int(worker), maxLog)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		http.Error(w, fmt.Sprintf("there is no rank-%d.log here", worker), http.StatusNotFound)
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	default:
		_, _ = w.Write(bytes.ToValidUTF8(text, []byte("?")))
	}
}

// answerEvents sends the run, and each second what is new of it, until the page is closed. A page
// that was interrupted says by Last-Event-ID what it has.
func (p *Page) answerEvents(w http.ResponseWriter, r *http.Request) {
	select {
	case p.streams <- struct{}{}:
		defer func() { <-p.streams }()
	default:
		http.Error(w, "too many pages are open: close one", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	out := http.NewResponseController(w)
	if err := out.SetReadDeadline(time.Time{}); err != nil { // else the request ends with it
		return
	}
	id := r.Header.Get("Last-Event-ID")
	ticker := time.NewTicker(p.tick)
	defer ticker.Stop()
	for {
		text, now, err := p.newsSince(r.Context(), id)
		if err != nil {
			return
		}
		id = now
		if err := out.SetWriteDeadline(time.Now().Add(sendPatience)); err != nil {
			return
		}
		if _, err := w.Write(text); err != nil {
			return
		}
		if err := out.Flush(); err != nil {
			return
		}
		select {
		case <-ticker.C:
		case <-r.Context().Done():
			return
		}
	}
}

// newsSince reads what is new in the run, unless that was done just before, and returns what a page
// that has what id names needs, as an event, and the name of what it has then.
func (p *Page) newsSince(ctx context.Context, id string) (text []byte, now string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.read) >= p.tick/2 {
		if err := p.run.Poll(ctx, time.Now()); err != nil {
			return nil, "", err
		}
		p.read = time.Now() // it may have taken long, and others wait for what it has read
	}
	made := watch.Seconds(time.Now())
	kind, value := "update", any(nil)
	if u, ok := p.run.Run.Since(id, made); ok {
		now, value = u.ID, u
	} else {
		v := p.run.Run.View(made)
		kind, now, value = "view", v.ID, v
	}
	body, err := json.Marshal(value)
	if err != nil {
		return nil, "", err
	}
	return fmt.Appendf(nil, "id: %s\nevent: %s\ndata: %s\n\n", now, kind, body), now, nil
}
