package dash

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync"

	api "github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/client/control"
	"github.com/shoal-ml/shoal/internal/group"
)

// The state of a job for programs on other hosts, such as the operator of Kubernetes. Requests are
// answered on goroutines of their own, and sendJob and sendRefusal write such an answer.

// Status answers whoever has its token about a job, as the control socket does (GET /v2/job), and
// passes on the wish to park it (POST /v2/park) and that another of its hosts is gone (POST
// /v2/lost); all other requests it refuses. OpenStatus makes one, and Close ends it. Any goroutine
// may use it.
type Status struct {
	group *group.Group
	addr  string
	token string

	mu  sync.Mutex // guards dir
	dir string     // of the run; "" = this host waits for a job
}

// OpenStatus listens at HOST:PORT, and answers who has the token from now on, at first that this
// host waits for a job. flag is how the user has named the address, for the error. The caller
// closes it.
func OpenStatus(flag, address, token string) (*Status, error) {
	l, err := listen(flag, address)
	if err != nil {
		return nil, err
	}
	s := &Status{group: group.New(context.Background()), addr: l.Addr().String(), token: token}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+api.PathJob, s.answerJob)
	mux.HandleFunc("POST "+api.PathPark, s.answerPark)
	mux.HandleFunc("POST "+api.PathLost, s.answerLost)
	s.group.Go("status", func(ctx context.Context) error {
		return serve(ctx, l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			given := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
			if subtle.ConstantTimeCompare([]byte(given), []byte(s.token)) != 1 {
				sendRefusal(w, http.StatusUnauthorized, errors.New("who asks here sends the "+
					"header Authorization: Bearer, with the token of --status-token-file"))
				return
			}
			mux.ServeHTTP(w, r)
		}))
	})
	return s, nil
}

// Addr is the address at which it listens.
func (s *Status) Addr() string { return s.addr }

// ShowRun has the answers be about the run in a directory.
func (s *Status) ShowRun(dir string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dir = dir
}

// Close ends the server, and waits for that. It is called once.
func (s *Status) Close() {
	s.group.Stop(nil)
	_ = s.group.Wait() // as with Metrics
}

// answerJob answers GET /v2/job.
func (s *Status) answerJob(w http.ResponseWriter, r *http.Request) {
	if j := s.findJobOrRefuse(w, r); j != nil {
		sendJob(w, j)
	}
}

// readBody reads the body of a request into a value. If it cannot, it says why, and returns false.
func readBody(w http.ResponseWriter, r *http.Request, into any) bool {
	const most = 4 << 10 // bytes, as on the control socket
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, most)).Decode(into)
	if err != nil {
		sendRefusal(w, http.StatusBadRequest,
			errors.New("the body is no such request: "+err.Error()))
	}
	return err == nil
}

// answerLost answers POST /v2/lost on every host of the job.
func (s *Status) answerLost(w http.ResponseWriter, r *http.Request) {
	var ask api.Lost
	if !readBody(w, r, &ask) {
		return
	}
	dir := s.runDir()
	if dir == "" {
		sendRefusal(w, http.StatusNotFound, errWaits)
		return
	}
	if err := control.ReportLostHost(r.Context(), dir, ask.Host, ask.Who); err != nil {
		sendRefusal(w, http.StatusConflict, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write([]byte("{}\n")) // as with sendJob
}

// answerPark answers POST /v2/park.
func (s *Status) answerPark(w http.ResponseWriter, r *http.Request) {
	var ask api.Park
	if !readBody(w, r, &ask) {
		return
	}
	j := s.findJobOrRefuse(w, r)
	if j == nil {
		return
	}
	if err := j.Park(r.Context(), ask.Who); err != nil {
		sendRefusal(w, http.StatusConflict, err)
		return
	}
	sendJob(w, j)
}

// errWaits says that there is no run yet.
var errWaits = errors.New("this host waits for a job")

// runDir returns in which directory the run is; "" = there is none yet.
func (s *Status) runDir() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dir
}

// findJobOrRefuse returns the job if it is led from here; otherwise it says why not, and returns
// nil.
func (s *Status) findJobOrRefuse(w http.ResponseWriter, r *http.Request) *control.Job {
	dir := s.runDir()
	if dir == "" {
		sendRefusal(w, http.StatusNotFound, errWaits)
		return nil
	}
	j, err := control.Find(r.Context(), dir)
	if err != nil {
		sendRefusal(w, http.StatusServiceUnavailable, err)
		return nil
	}
	return j
}

// sendJob sends a job as JSON.
func sendJob(w http.ResponseWriter, j *control.Job) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(j.Job) // who has gone needs no answer
}

// sendRefusal answers a request with an HTTP status and with why it is not carried out.
func sendRefusal(w http.ResponseWriter, code int, why error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(api.Error{Error: why.Error()})
}
