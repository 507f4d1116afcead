package launcher

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/shoal-ml/shoal/agent"
	api "github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/internal/strict"
	"github.com/shoal-ml/shoal/internal/version"
	"github.com/shoal-ml/shoal/job"
	"github.com/shoal-ml/shoal/setting"
)

// This file and some others answer tools on the control socket of a job. The methods answerX
// are HTTP handlers: they send JSON, which is the job as it is now (api.Job) unless they say other,
// or an api.Error. Each request has a goroutine of its own, which may wait for the engine's thread.

// Bounds of what a tool may send, and of the time that a request may take.
const (
	maxControlBody = 4 << 10   // bytes of a request's body, and of its headers
	maxAllotBody   = 128 << 10 // of the body about slots by host: a job has up to 1,024 hosts
	controlTimeout = 5 * time.Second
)

// listenControl makes the socket on which the launcher answers tools such as shoal ps. Only this
// user can open it, like the directory that it lies in. serveControl closes it.
func listenControl(path string) (net.Listener, error) {
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("launcher: the control socket of the job: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("launcher: the control socket of the job: %w", err)
	}
	return l, nil
}

// serveControl answers tools on the control socket, each on a goroutine of its own, and blocks
// until ctx ends; then it waits up to a second for answers that are being given, and closes the
// socket.
func (l *launcher) serveControl(ctx context.Context, listener net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+api.PathJob, l.answerJob)
	mux.HandleFunc("GET "+api.PathCluster, l.answerCluster)
	mux.HandleFunc("POST "+api.PathResize, l.answerResize)
	mux.HandleFunc("POST "+api.PathAllot, l.answerAllot)
	mux.HandleFunc("POST "+api.PathLimit, l.answerLimit)
	mux.HandleFunc("POST "+api.PathPark, l.answerPark)
	mux.HandleFunc("POST "+api.PathSet, l.answerSet)
	mux.HandleFunc("POST "+api.PathReshape, l.answerReshape)
	mux.HandleFunc("POST "+api.PathStop, l.answerStop)
	mux.HandleFunc("POST "+api.PathDrain, l.answerDrain)
	mux.HandleFunc("POST "+api.PathRecover, l.answerRecover)
	mux.HandleFunc("POST "+api.PathLost, l.answerLost)
	mux.HandleFunc("POST "+api.PathToken, l.answerInvite)
	mux.HandleFunc("/", refuseUnknown)
	server := &http.Server{Handler: mux, ReadTimeout: controlTimeout, WriteTimeout: controlTimeout,
		MaxHeaderBytes: maxControlBody,
		ErrorLog:       log.New(io.Discard, "", 0)} // a tool that hangs up early is no news
	stop := context.AfterFunc(ctx, func() { listener.Close() })
	defer stop()
	err := server.Serve(listener)
	if ctx.Err() == nil {
		return fmt.Errorf("launcher: the control socket of the job: %w", err)
	}
	last, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if server.Shutdown(last) != nil {
		server.Close()
	}
	return nil
}

// jobKnownWait is how long a question about the job waits on a host that has just joined, until the
// host has been told what the job is and who leads it. A tool waits longer for its answer.
const jobKnownWait = controlTimeout / 2

// answerJob answers with the state of the job. It waits up to jobKnownWait until that is known.
func (l *launcher) answerJob(w http.ResponseWriter, r *http.Request) {
	if s, ok := l.awaitLed(w, r); ok {
		sendJSON(w, l.describeJob(s))
	}
}

// awaitLed waits up to jobKnownWait until it is known what the job is and who leads it, and returns
// its newest status. Where the job is over, or led from another host, it sends that as an error,
// and returns false.
func (l *launcher) awaitLed(w http.ResponseWriter, r *http.Request) (s agent.Status, ok bool) {
	ctx, cancel := context.WithTimeout(r.Context(), jobKnownWait)
	defer cancel()
	select {
	case <-l.registry.known:
	case <-ctx.Done():
		sendError(w, http.StatusServiceUnavailable,
			errors.New("this host has joined a job, and was not told yet what it is"))
		return s, false
	}
	s, err := l.agent.Await(ctx, func(s agent.Status) bool {
		return s.Head != "" || s.Stuck || s.Ended
	})
	switch {
	case err != nil:
		sendError(w, http.StatusServiceUnavailable, fmt.Errorf(
			"this host has joined job %s, and was not told yet which host leads it",
			l.registry.jobName()))
		return s, false
	case s.Ended:
		sendError(w, http.StatusServiceUnavailable,
			fmt.Errorf("job %s is at its end; its files are in %s", l.registry.jobName(),
				l.reporter.directoryPath()))
		return s, false
	case s.Head != l.registry.hostName() && !s.Stuck:
		sendError(w, http.StatusServiceUnavailable,
			fmt.Errorf("job %s is led from host %s: ask there", l.registry.jobName(), s.Head))
		return s, false
	}
	return s, true
}

// sendJSON sends v as the answer to a request.
func sendJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // a tool that has gone needs no answer
}

// answerResize asks the head for another number of workers.
func (l *launcher) answerResize(w http.ResponseWriter, r *http.Request) {
	var ask api.Resize
	if !readControl(w, r, &ask, &ask.Who) {
		return
	}
	if err := l.checkSize(ask.Workers); err != nil {
		sendError(w, http.StatusBadRequest, err)
		return
	}
	if by := l.registry.stoppedBy(); by != "" {
		sendError(w, http.StatusConflict,
			fmt.Errorf("%s has asked for the end of the job: it takes no more workers", by))
		return
	}
	if err := l.agent.Resize(ask.Workers, ask.Who); err != nil {
		sendError(w, http.StatusConflict, err)
		return
	}
	l.answerJob(w, r)
}

// checkSize returns why no job can have so many workers; nil where one can.
func (l *launcher) checkSize(workers int) error {
	if 1 <= workers && workers <= job.MaxWorkers {
		return nil
	}
	return fmt.Errorf("workers: %d is not a size that a job can have on one host; give 1 to %d, "+
		"and to end the job use shoal stop %s", workers, job.MaxWorkers, l.registry.jobName())
}

// answerSet asks the head for another setting, and does not wait for it, or sends what is predicted
// of it (a setting.Change).
func (l *launcher) answerSet(w http.ResponseWriter, r *http.Request) {
	var ask api.Set
	if !readControl(w, r, &ask, &ask.Who) {
		return
	}
	next, err := (setting.Setting{}).WithRequested(ask.Assign)
	if err == nil && next.Size > 0 {
		err = l.checkSize(int(next.Size))
	}
	if err != nil {
		sendError(w, http.StatusBadRequest, err)
		return
	}
	if ask.Plan {
		c, err := l.agent.PlanSet(ask.Assign, ask.Who)
		if err != nil {
			sendError(w, http.StatusConflict, err)
			return
		}
		sendJSON(w, c)
		return
	}
	if err := l.agent.Set(ask.Assign, ask.Who); err != nil {
		sendError(w, http.StatusConflict, err)
		return
	}
	l.answerJob(w, r)
}

// answerStop asks for the end of the job, where that is led, and does not wait for it: elsewhere it
// would end this host's part alone. Of a job that is over there is nothing to ask.
func (l *launcher) answerStop(w http.ResponseWriter, r *http.Request) {
	var ask api.Stop
	if !readControl(w, r, &ask, &ask.Who) {
		return
	}
	if s := l.agent.Status(); s.Ended {
		sendJSON(w, l.describeJob(s))
	} else if s, ok := l.awaitLed(w, r); ok {
		l.registry.requestStop(ask.Now, ask.Who)
		sendJSON(w, l.describeJob(s))
	}
}

// answerDrain asks for a host to be freed of its workers, and does not wait for that.
func (l *launcher) answerDrain(w http.ResponseWriter, r *http.Request) {
	var ask api.Drain
	if !readControl(w, r, &ask, &ask.Who) {
		return
	}
	before := l.agent.Status()
	if err := l.drainHost(ask.Host, ask.Who); err != nil {
		sendError(w, http.StatusConflict, err)
		return
	}
	s := l.agent.Status()
	if s.Head != l.registry.hostName() { // this host has handed over already
		s = before
	}
	sendJSON(w, l.describeJob(s))
}

// answerRecover makes this host the head of a job that is stuck, if the request says that a person
// knows the others to be gone.
func (l *launcher) answerRecover(w http.ResponseWriter, r *http.Request) {
	var ask api.Recover
	if !readControl(w, r, &ask, &ask.Who) {
		return
	}
	switch s := l.agent.Status(); {
	case !ask.Force:
		sendError(w, http.StatusBadRequest, errors.New("force: only a person can know that the "+
			"other hosts are gone for good; say so with --force"))
		return
	case !s.Stuck:
		sendError(w, http.StatusConflict,
			fmt.Errorf("job %s is led by %s, which can be reached: there is nothing to recover",
				l.registry.jobName(), s.Head))
		return
	}
	l.console.Note(ask.Who + " says that the other hosts are gone for good")
	l.agent.ForceHead()
	l.answerJob(w, r)
}

// answerLost has the silence of a host that is said to be gone count sooner, on any host of the
// job. It waits for nothing.
func (l *launcher) answerLost(w http.ResponseWriter, r *http.Request) {
	var ask api.Lost
	if !readControl(w, r, &ask, &ask.Who) {
		return
	}
	if dir := l.reporter.directoryPath(); ask.Dir != dir {
		sendError(w, http.StatusConflict, fmt.Errorf("dir: the run of this host is in %s and not "+
			"in %q", dir, ask.Dir))
		return
	}
	l.agent.SuspectHost(ask.Host)
	sendJSON(w, struct{}{})
}

// LongestToken is how long a token can be good at most: nobody can call one back.
const LongestToken = 366 * 24 * time.Hour

// answerInvite makes a token with which other hosts join, and sends an api.Invitation.
func (l *launcher) answerInvite(w http.ResponseWriter, r *http.Request) {
	var ask api.Invite
	if !readControl(w, r, &ask, &ask.Who) {
		return
	}
	f := l.cfg.Fleet
	switch {
	case ask.Seconds < 1 || ask.Seconds > int64(LongestToken/time.Second):
		sendError(w, http.StatusBadRequest,
			fmt.Errorf("seconds: a token cannot be good for %d s; give 1 to %d", ask.Seconds,
				int64(LongestToken/time.Second)))
		return
	case f == nil || f.Token == nil || f.Join == nil:
		sendError(w, http.StatusConflict,
			fmt.Errorf(
				"job %s takes no other hosts, since it was started without --listen and --hosts",
				l.registry.jobName()))
		return
	}
	life := time.Duration(ask.Seconds) * time.Second
	expires := time.Now().Add(life)
	l.console.Note(fmt.Sprintf("%s has made a token with which hosts join until %s", ask.Who,
		expires.Format(time.DateTime)))
	sendJSON(w, api.Invitation{Token: f.Token(life), Join: f.Join(), Expires: expires})
}

// readControl reads the body of a request into the value that into points to, and checks *who, a
// field of that value with the name of the person who asks. Where the body is no request, as with a
// field that is not known, it sends that as an error, and returns false.
func readControl(w http.ResponseWriter, r *http.Request, into any, who *string) bool {
	return readControlUpTo(maxControlBody, w, r, into, who)
}

// readControlUpTo is readControl of a body of so many bytes at most.
func readControlUpTo(most int64, w http.ResponseWriter, r *http.Request, into any,
	who *string) bool {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, most))
	if err == nil {
		err = strict.JSON(body, into)
	}
	if long := (*http.MaxBytesError)(nil); errors.As(err, &long) {
		err = fmt.Errorf("the body is no request: it has more than %d bytes", long.Limit)
	} else if err != nil {
		err = fmt.Errorf("the body is no request: %w; docs/formats/control.md says what is", err)
	} else {
		err = api.CheckWho(who)
	}
	if err != nil {
		sendError(w, http.StatusBadRequest, err)
	}
	return err == nil
}

// refuseUnknown answers a request for a path or a method that this version does not have.
func refuseUnknown(w http.ResponseWriter, r *http.Request) {
	paths := []string{api.PathJob, api.PathCluster, api.PathResize, api.PathAllot, api.PathLimit,
		api.PathPark, api.PathSet, api.PathReshape, api.PathStop, api.PathDrain, api.PathRecover,
		api.PathLost, api.PathToken}
	known := "there are GET " + strings.Join(paths[:2], ", GET ") + ", POST " +
		strings.Join(paths[2:], ", POST ")
	var theirs int
	if n, _ := fmt.Sscanf(r.URL.Path, "/v%d/", &theirs); n == 1 && theirs != api.Protocol {
		sendError(w, http.StatusNotFound,
			fmt.Errorf("the launcher (shoal %s) speaks protocol %d of "+
				"control sockets, the command protocol %d: use the version of shoal that "+
				"started the job; %s", version.Version, api.Protocol, theirs, known))
		return
	}
	code := http.StatusNotFound
	if slices.Contains(paths, r.URL.Path) {
		code = http.StatusMethodNotAllowed
	}
	sendError(w, code, fmt.Errorf("%s %s is no request of this version; %s", r.Method, r.URL.Path,
		known))
}

// sendError sends an error as the answer to a request, with an HTTP status.
func sendError(w http.ResponseWriter, code int, err error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(api.Error{Error: err.Error()})
}

// describeJob returns the job as it is now, for tools; s is its newest status. It waits for the
// engine's thread.
func (l *launcher) describeJob(s agent.Status) api.Job {
	j := api.Job{Started: l.startOf(l.registry.knownJob()), PID: os.Getpid(), Head: s.Head,
		Generation: s.Generation, Size: s.Size, Want: s.Want, Spares: s.Spares,
		Training: l.describeTraining(s),
		MeshStatus: api.MeshStatus{Mesh: s.Mesh, NextMesh: s.Reshaping, MeshError: s.Broken,
			RollbackReason: s.Lost, LastRollback: s.Back},
		Room: l.describeRoom(s), Paused: s.Paused, Entering: s.Entering, Unplaced: s.Short,
		StoppedBy: l.registry.stoppedBy(),
		Kinds:     map[string]string{},
		Workers:   []api.Worker{}}
	j.ParkStatus = l.registry.describePark()
	if f := l.cfg.Fleet; f != nil && f.Join != nil {
		j.Join = f.Join()
		j.Hosts = l.registry.allHosts(s.HostNames())
	}
	for _, h := range s.Hosts {
		if h.Kind != "" {
			j.Kinds[h.Name] = h.Kind
		}
	}
	spec := l.registry.jobSpec()
	j.Name, j.Dir, j.Command, j.Min, j.Max = spec.Name, l.reporter.directoryPath(), spec.Command,
		spec.Min,
		spec.Max
	if asked := l.registry.requestedName(); asked != j.Name {
		j.RequestedName = asked
	}
	waits := l.agent.Waits()
	workers, joined := l.registry.recentWorkers()
	for _, w := range workers {
		j.Workers = append(j.Workers, describeWorker(w, s, waits))
	}
	j.State = stateOf(&j, s.Stuck, joined)
	return j
}

// stateOf returns in a word how a job is, of which all but that is known. joined says that one of
// its workers has joined. It is pure.
func stateOf(j *api.Job, stuck, joined bool) api.State {
	switch {
	case stuck && !j.Parked: // also of one that is asked to end: its step does not
		return api.Stuck
	case j.StoppedBy != "":
		return api.Stopping
	case j.Parked:
		return api.Parked
	case j.Paused && (j.ParkedBy == "" || j.Mesh != ""): // on a mesh it is parked later
		return api.Paused
	case j.Generation == 0 && joined:
		return api.Starting
	case j.ParkedBy != "":
		return api.Parking
	case j.Elastic && (j.Size != j.Want || j.Entering > 0 || j.NextMesh != ""):
		return api.Resizing
	}
	return api.Running
}

// describeWorker returns a worker as it is in the status s, for tools; waits says, by the number of
// a worker, how others wait for it.
func describeWorker(r workerRecord, s agent.Status, waits map[int]api.Wait) api.Worker {
	w := api.Worker{Worker: r.worker, Host: r.host, Rank: slices.Index(s.Members, r.worker),
		PID: r.pid, Running: r.exit == nil,
		Waiting: r.exit == nil && slices.Contains(s.Waiting, r.worker), Metrics: r.metrics}
	if s.Generation == 0 {
		w.Rank = r.worker
	}
	if r.exit != nil {
		w.Rank, w.Ended, w.Failed = -1, r.exit.String(), !r.exit.OK() && !r.dismissed
	} else if wait, is := waits[r.worker]; is {
		wait.Absent = !r.joined
		w.Awaited = &wait
	}
	return w
}
