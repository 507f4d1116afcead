package keeper

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	api "github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/internal/strict"
	"github.com/shoal-ml/shoal/internal/version"
	"github.com/shoal-ml/shoal/job"
	"github.com/shoal-ml/shoal/pool"
)

// What a keeper answers tools, in HTTP on a Unix socket: docs/formats/pool.md has the requests.
// Each handler runs on the goroutine of its request, and reads and changes the pool with keeper.do,
// on that of loop. Tools call Call, Look, End, FindJob and Find on a goroutine of their own, and
// wait for the answer.

// The paths of the requests.
const (
	PathQueue  = "/v1/queue"  // GET: a State; with ?all also of jobs that are over
	PathJob    = "/v1/job"    // GET with ?name=JOB: a Job
	PathSubmit = "/v1/submit" // POST a Request: a pool.Answer
	PathStop   = "/v1/stop"   // POST an Ask: an empty object
	PathPark   = "/v1/park"   // POST an Ask: an empty object; the job may refuse later
	PathResume = "/v1/resume" // POST an Ask: an empty object
	PathResize = "/v1/resize" // POST an Ask: an empty object
	PathDrain  = "/v1/drain"  // POST an Ask: an empty object
	PathForget = "/v1/forget" // POST an Ask: an empty object
	PathEnd    = "/v1/end"    // POST an Ask: an empty object; the keeper ends, and its jobs go on
)

// State is a pool as it is now.
type State struct {
	Pool   string          `json:"pool"`
	Policy string          `json:"policy"`
	Now    int64           `json:"now"` // milliseconds since 1970
	Hosts  []pool.HostView `json:"hosts"`
	Jobs   []pool.JobView  `json:"jobs"`
}

// Job is a job of a pool as it is now.
type Job struct {
	Pool string       `json:"pool"`
	Now  int64        `json:"now"` // milliseconds since 1970
	Job  pool.JobView `json:"job"`
}

// Request asks for a job.
type Request struct {
	Spec string   `json:"spec"` // of the job, in YAML or JSON, as shoal run -f reads it
	Dir  string   `json:"dir"`  // folder in which the command is run
	Env  []string `json:"env"`  // the environment of who submits, KEY=VALUE
	Who  string   `json:"who"`  // who submits, such as "ada@host"
}

// Ask is the body of a request about a job or a host.
type Ask struct {
	Job     string `json:"job,omitempty"`
	Host    string `json:"host,omitempty"` // of drain and forget
	Who     string `json:"who"`
	Now     bool   `json:"now,omitempty"`     // of stop: at once, and not when its step ends
	Workers int    `json:"workers,omitempty"` // of resize; 0 = as the policy decides
	Undo    bool   `json:"undo,omitempty"`    // of drain: the host gets jobs again
}

// handler returns what answers tools: each request on a goroutine of its own.
func (k *keeper) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+PathQueue, func(w http.ResponseWriter, r *http.Request) {
		var s State
		if k.do(r.Context(), func() {
			s = State{k.Name, k.m.Policy(), k.now(), k.m.Hosts(k.Host),
				k.m.Jobs(r.URL.Query().Has("all"))}
			if s.Jobs == nil {
				s.Jobs = []pool.JobView{}
			}
		}) {
			answer(w, s, nil)
		} else {
			answer(w, nil, endedError(k.Name))
		}
	})
	mux.HandleFunc("GET "+PathJob, func(w http.ResponseWriter, r *http.Request) {
		name := r.URL.Query().Get("name")
		j := Job{Pool: k.Name}
		var err error
		if k.do(r.Context(), func() {
			j.Now = k.now()
			j.Job, err = k.m.Find(name)
		}) {
			answer(w, j, err)
		} else {
			answer(w, nil, endedError(k.Name))
		}
	})
	mux.HandleFunc("POST "+PathSubmit, k.submit)
	about := func(f func(a Ask) error) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			var a Ask
			err := read(r, &a, &a.Who)
			if err == nil && !k.do(r.Context(), func() { err = f(a) }) {
				answer(w, nil, endedError(k.Name))
				return
			}
			answer(w, struct{}{}, err)
		}
	}
	mux.HandleFunc("POST "+PathStop, about(func(a Ask) error {
		return k.m.Stop(k.now(), a.Job, a.Who, a.Now)
	}))
	mux.HandleFunc("POST "+PathPark, about(func(a Ask) error {
		return k.m.Park(k.now(), a.Job, a.Who)
	}))
	mux.HandleFunc("POST "+PathResume, about(func(a Ask) error {
		return k.m.Resume(k.now(), a.Job, a.Who)
	}))
	mux.HandleFunc("POST "+PathResize, about(func(a Ask) error {
		return k.m.Resize(k.now(), a.Job, a.Workers, a.Who)
	}))
	mux.HandleFunc("POST "+PathDrain, about(func(a Ask) error {
		return k.m.Leave(k.now(), a.Host, !a.Undo)
	}))
	mux.HandleFunc("POST "+PathForget, about(func(a Ask) error {
		return k.m.Forget(k.now(), a.Host)
	}))
	mux.HandleFunc("POST "+PathEnd, endHandler(k.group, k.Waiters))
	mux.HandleFunc("/", refuseUnknown)
	return mux
}

// Waiters are the connections of tools that wait until a keeper has closed all that another one may
// open then. Who calls Run or Join makes them, and closes them last. Any goroutine may call their
// methods.
type Waiters struct {
	mu     sync.Mutex
	conns  []net.Conn
	closed bool // what is added from then on is closed at once
}

// add takes a connection, which Close closes.
func (w *Waiters) add(conn net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		conn.Close()
		return
	}
	w.conns = append(w.conns, conn)
}

// Close ends the wait of all. It can be called again.
func (w *Waiters) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	for _, conn := range w.conns {
		conn.Close() // the tool may have gone
	}
	w.conns = nil
}

// endHandler returns what answers PathEnd: it ends the keeper whose goroutines are those of g. The
// answer ends when the waiters are closed, one of which the tool is.
func endHandler(g *group.Group, waiters *Waiters) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, io.LimitReader(r.Body, maxRequest)) // unread it would be lost
		if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
			waiters.add(conn)
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"+
				"Connection: close\r\n\r\n{}\n") // a tool that has gone needs no answer
		}
		g.Stop(nil)
	}
}

// refuseUnknown answers a request that there is not, as one of another version of shoal.
func refuseUnknown(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusNotFound)
	_, _ = w.Write(refusalText(fmt.Sprintf("the keeper knows no %s %s: use the version of shoal "+
		"that keeps the pool, which is %s", r.Method, r.URL.Path, version.Version)))
}

// submit answers PathSubmit, on the goroutine of the request, which waits until the store has the
// job.
func (k *keeper) submit(w http.ResponseWriter, r *http.Request) {
	var q Request
	err := read(r, &q, &q.Who)
	var s pool.Submission
	if err == nil {
		s, err = q.submission()
	}
	if err != nil {
		answer(w, nil, err)
		return
	}
	done := make(chan pool.Answer, 1)
	if !k.do(r.Context(), func() {
		before := k.m.Ends()
		var id string
		if id, err = k.m.Submit(k.now(), s); err == nil {
			k.waiting = append(k.waiting, waitingReply{id, before, done})
		}
	}) {
		answer(w, nil, endedError(k.Name))
		return
	}
	if err != nil {
		answer(w, nil, err)
		return
	}
	select {
	case a := <-done:
		answer(w, a, nil)
	case <-r.Context().Done(): // the job stays
	case <-k.group.Context().Done():
		answer(w, nil, endedError(k.Name))
	}
}

// maxRequest bounds the body of a request, in bytes.
const maxRequest = 1 << 20

// readBody reads the body of a request. One that is too long, or breaks off, is a *pool.UsageError.
func readBody(r *http.Request) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxRequest+1))
	switch {
	case err != nil:
		return nil, &pool.UsageError{Msg: "the request cannot be read: " + err.Error()}
	case len(body) > maxRequest:
		_, _ = io.Copy(io.Discard, r.Body) // who still writes would not hear the answer
		return nil, &pool.UsageError{Msg: fmt.Sprintf("the request has more than %d bytes with "+
			"the spec and the environment: put long lists into files", maxRequest)}
	}
	return body, nil
}

// read reads the body of a request as JSON into a value, which is a pointer, and checks *who, a
// field of that value with the name of who asks. The error for a body that is too long, or no such
// JSON, or a name that cannot be printed, is a *pool.UsageError.
func read(r *http.Request, into any, who *string) error {
	body, err := readBody(r)
	if err != nil {
		return err
	}
	if err := strict.JSON(body, into); err != nil {
		return &pool.UsageError{Msg: "the request cannot be read: " + err.Error()}
	}
	if err := api.CheckWho(who); err != nil {
		return &pool.UsageError{Msg: err.Error()}
	}
	return nil
}

// Refusal is the body of an answer to a request that is not carried out.
type Refusal struct {
	Error string `json:"error"`
	Usage bool   `json:"usage"` // whether the request makes no sense as it was put
}

// refusalText returns the body of an answer that says why a request is not carried out.
func refusalText(why string) []byte {
	text, _ := json.Marshal(Refusal{Error: why}) // a text
	return text
}

// answer sends v as JSON with status 200, or else err as a Refusal with status 409.
func answer(w http.ResponseWriter, v any, err error) {
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		var usage *pool.UsageError
		var spec *job.Error
		w.WriteHeader(http.StatusConflict)
		v = Refusal{err.Error(), errors.As(err, &usage) || errors.As(err, &spec)}
	}
	_ = json.NewEncoder(w).Encode(v) // a tool that has gone needs no answer
}

// Call asks the keeper of a pool on this host, and reads its answer into into; a nil body makes it
// a GET. The error for a request that makes no sense as it was put is a *pool.UsageError.
func Call(ctx context.Context, name, path string, body, into any) error {
	return callWithin(ctx, answerTime, name, path, body, into)
}

// callWithin is Call of a keeper that may take so long until it begins to answer.
func callWithin(ctx context.Context, within time.Duration, name, path string, body,
	into any) error {
	reply, err := request(ctx, within, name, path, body)
	if err != nil {
		return err
	}
	defer reply.Close()
	err = json.NewDecoder(reply).Decode(into)
	if cut := new(net.OpError); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.As(err, &cut) {
		err = cmp.Or(context.Cause(ctx), endedError(name))
	}
	return err
}

// endedError returns the error of a request to a keeper that has ended meanwhile.
func endedError(name string) error {
	return fmt.Errorf("the keeper of the pool %s has ended before it answered; what it was asked "+
		"may be done: see shoal queue when it is started again", name)
}

// End ends the keeper of a pool on this host for who asks, and waits until it has closed all that
// another one may open then. Its process may be one that cannot be seen from here, as in a
// container.
func End(ctx context.Context, name, who string) error {
	reply, err := request(ctx, answerTime, name, PathEnd, Ask{Who: who})
	if err != nil {
		return err
	}
	defer reply.Close()
	_, _ = io.Copy(io.Discard, reply) // however it ends, the keeper has ended
	return context.Cause(ctx)
}

// answerTime is how long a keeper may take until it begins to answer. One that takes longer is
// stopped, or cannot write the record of its pool.
const answerTime = time.Minute

// lookTime is how long a keeper may take until it begins to answer who only looks, as long as a
// launcher may.
const lookTime = 5 * time.Second

// Look is Call for what changes nothing, and waits no longer than 5 s for a keeper that does not
// answer.
func Look(ctx context.Context, name, path string, into any) error {
	return callWithin(ctx, lookTime, name, path, nil, into)
}

// request is Call up to the answer, which the caller reads and closes; it begins within some time.
func request(ctx context.Context, within time.Duration, name, path string, body any) (
	io.ReadCloser, error) {
	socket, err := Socket(name)
	if err != nil {
		return nil, err
	}
	method, text := http.MethodGet, ""
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		method, text = http.MethodPost, string(b)
	}
	r, err := http.NewRequestWithContext(ctx, method, "http://pool"+path, strings.NewReader(text))
	if err != nil {
		return nil, err
	}
	t := &http.Transport{DisableKeepAlives: true, ResponseHeaderTimeout: within,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}}
	reply, err := t.RoundTrip(r)
	var dial *net.OpError
	var late net.Error
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.As(err, &dial) && dial.Op == "dial":
		return nil, fmt.Errorf("no pool called %s is kept on this host: start one with shoal pool "+
			"start", name)
	case errors.As(err, &late) && late.Timeout():
		return nil, &silentError{name, within}
	default:
		return nil, endedError(name)
	}
	if reply.StatusCode == http.StatusOK {
		return reply.Body, nil
	}
	defer reply.Body.Close()
	var no Refusal
	if err := json.NewDecoder(reply.Body).Decode(&no); err != nil || no.Error == "" {
		return nil, fmt.Errorf("the keeper of the pool %s answers %s: use the version of shoal "+
			"that keeps it", name, reply.Status)
	}
	if no.Usage {
		return nil, &pool.UsageError{Msg: no.Error}
	}
	return nil, errors.New(no.Error)
}

// silentError is the error of a request to a keeper that does not begin to answer.
type silentError struct {
	pool   string
	within time.Duration // for which it was waited
}

// Error says which keeper it is, and what to do.
func (e *silentError) Error() string {
	return fmt.Sprintf("the keeper of the pool %s has not answered for %v, as where it is "+
		"stopped, or cannot write its record; what it was asked may be done: see shoal queue "+
		"when it answers again", e.pool, e.within)
}

// FindJob returns the job of a name in a pool that is kept on this host, of several the one that
// was submitted last, and whether there is one. It asks all pools at once. If none says that it has
// the job, silent is about keepers that do not answer within 5 s; nil = all have answered.
func FindJob(ctx context.Context, name string) (found Job, is bool, silent error) {
	return findJobWithin(ctx, lookTime, name)
}

// findJobWithin is FindJob of keepers that may take so long until they begin to answer.
func findJobWithin(ctx context.Context, within time.Duration, name string) (found Job, is bool,
	silent error) {
	pools, _ := Names()
	jobs, errs := make([]Job, len(pools)), make([]error, len(pools))
	g := group.New(ctx)
	for i, pool := range pools {
		g.Go("ask the pool "+pool, func(ctx context.Context) error {
			errs[i] = callWithin(ctx, within, pool, PathJob+"?name="+url.QueryEscape(name), nil,
				&jobs[i])
			return nil
		})
	}
	if g.Wait() != nil {
		return found, false, nil
	}
	var late *silentError
	var list []string
	for i, j := range jobs {
		switch {
		case errs[i] == nil && (!is || j.Job.Submitted > found.Job.Submitted):
			found, is = j, true
		case errors.As(errs[i], &late):
			list = append(list, late.pool)
		}
	}
	if !is && list != nil {
		silent = fmt.Errorf("a pool may have it whose keeper has not answered for %v, as where "+
			"that is stopped: %s; ask again when shoal queue answers", within,
			strings.Join(list, ", "))
	}
	return found, is, silent
}

// Find returns the name of the pool that a tool is to ask: the one that is given, or else the only
// one that is kept on this host. It fails where there is none, or there are several: how is what to
// write then.
func Find(given, how string) (string, error) {
	if given != "" {
		return given, nil
	}
	live, err := Live()
	if err != nil {
		return "", err
	}
	switch len(live) {
	case 0:
		return "", errors.New("no pool is kept on this host: start one with shoal pool start")
	case 1:
		return live[0], nil
	}
	return "", &pool.UsageError{Msg: fmt.Sprintf("several pools are kept on this host, %s: say "+
		"which one with %s", strings.Join(live, " and "), how)}
}
