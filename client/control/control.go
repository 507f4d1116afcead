// Package control finds the jobs that this user runs on this host, and speaks with their launchers:
// what shoal ps, resize and stop do. docs/formats/control.md has the requests.
package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"

	api "github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/internal/pattern"
	"github.com/shoal-ml/shoal/internal/rundir"
	"github.com/shoal-ml/shoal/internal/version"
	"github.com/shoal-ml/shoal/job"
	"github.com/shoal-ml/shoal/setting"
)

// The functions without a receiver keep nothing, so any goroutine may call them. List,
// ListWithRefusals and Find wait for all launchers at once, ReportLostHost for one after the other;
// the others do not wait.

// patience is how long a launcher may take to answer. It is busy with nothing else; one that takes
// longer is stopped.
const patience = 5 * time.Second

// maxAnswer bounds what a launcher may say of its job, in bytes.
const maxAnswer = 64 << 20

// ErrEnded means that the job has ended: its launcher answers no more.
var ErrEnded = errors.New("control: the job has ended")

// Job is a job that ran when it was found. Its methods wait for the answer of the launcher, as long
// as their context allows, and may set the embedded Job: one goroutine uses it at a time. It holds
// no connection, so nothing has to be closed.
type Job struct {
	api.Job        // the job as it was when it was found
	socket  string // path of the launcher's socket
}

// AtSocket returns the job whose launcher answers on a socket, without asking it; Refresh fills it
// in.
func AtSocket(socket string) *Job { return &Job{socket: socket} }

// List asks all launchers of this user on this host, and returns the running jobs, oldest first. An
// error beside them is about launchers that do not answer, or speak another protocol. It blocks
// for the patience of 5 s at most.
func List(ctx context.Context) ([]*Job, error) {
	jobs, _, err := ListWithRefusals(ctx)
	return jobs, err
}

// ListWithRefusals is List, and returns also in refused what launchers say that answer for no job:
// it ends, or is led from another host.
func ListWithRefusals(ctx context.Context) (jobs []*Job, refused []string, err error) {
	sockets, err := rundir.List("", rundir.ControlSuffix)
	if err != nil {
		return nil, nil, err
	}
	asked, answers := make([]*Job, len(sockets)), make([]error, len(sockets))
	g := group.New(ctx) // all at once, since one that does not answer takes the patience
	for i, socket := range sockets {
		asked[i] = AtSocket(socket)
		g.Go("ask a launcher", func(ctx context.Context) error {
			answers[i] = asked[i].Refresh(ctx)
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, nil, err
	}
	var silent []error
	for i, err := range answers {
		var refusal *Refusal
		switch {
		case err == nil:
			jobs = append(jobs, asked[i])
		case errors.As(err, &refusal):
			refused = append(refused, refusal.Reason)
		case errors.Is(err, ErrEnded): // a launcher that is gone
		default:
			silent = append(silent, err)
		}
	}
	slices.SortFunc(jobs, func(a, b *Job) int { return a.Started.Compare(b.Started) })
	return jobs, refused, errors.Join(silent...)
}

// Unknown is the error of Find for a name that no running job has, or several have.
type Unknown struct {
	Name    string
	Matches []string // directories of the jobs that have it
	Running []string // names of all jobs
	Refused []string // what launchers say that answer for no job: it is led from another host, say
	// Silent is about launchers that do not answer, or speak another protocol, one of which may
	// have the job; nil = there are none.
	Silent error
}

// RefusalOf returns what a launcher says that does not answer for the job of the run in a
// directory; "" = none says so.
func (e *Unknown) RefusalOf(dir string) string {
	job, _, _ := strings.Cut(filepath.Base(dir), "@") // what follows is a host that has joined
	for _, reason := range e.Refused {
		if strings.HasPrefix(reason, "job "+job+" ") {
			return reason
		}
	}
	return ""
}

// Error says which of the running jobs have the name, or that none has and which others run.
func (e *Unknown) Error() string {
	silent, name := "", e.Name
	if strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		name = strconv.Quote(name) // it would be several lines, say
	}
	if e.Silent != nil {
		silent = "; " + e.Silent.Error()
	}
	switch {
	case len(e.Matches) > 0:
		return fmt.Sprintf(
			"%d running jobs are called %s; name the directory of the one that you mean: %s",
			len(e.Matches), name, strings.Join(e.Matches, ", "))
	case len(e.Running) == 0 && len(e.Refused) > 0:
		return fmt.Sprintf("no running job is led from here; %s%s", strings.Join(e.Refused, "; "),
			silent)
	case len(e.Running) > 0:
		return fmt.Sprintf("no running job is called %s; running: %s%s", name,
			strings.Join(e.Running, ", "), silent)
	case e.Silent != nil:
		return fmt.Sprintf("no running job that answers is called %s%s", name, silent)
	}
	return fmt.Sprintf("no running job is called %s; none runs here under this user, see shoal ps",
		name)
}

// Find returns the running job with a name, or with the directory of its run, as List finds it.
// Where no running job has the name, it is the job that was started with that name and is called
// NAME-2, say, because an earlier run has the name; or else the job of a script of that name. It
// asks as List does; the error is an *Unknown, or the cause of ctx.
func Find(ctx context.Context, name string) (*Job, error) {
	jobs, refused, err := ListWithRefusals(ctx)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	unknown := &Unknown{Name: name, Refused: refused, Silent: err}
	var named, asked, scripts []*Job
	script := name // the default name of a job whose script is called so
	if !rundir.IsPath(name) {
		script = job.NameFor([]string{name})
	}
	for _, j := range jobs {
		unknown.Running = append(unknown.Running, j.Name)
		if j.Name == name || sameDir(j.Dir, name) {
			named = append(named, j)
		} else if j.RequestedName == name && name != "" { // it is empty where nobody gave one
			asked = append(asked, j)
		} else if j.Name == script || j.RequestedName == script {
			scripts = append(scripts, j)
		}
	}
	if len(named) == 0 {
		named = asked
	}
	if len(named) == 0 {
		named = scripts
	}
	if len(named) == 1 {
		return named[0], nil
	}
	for _, j := range named {
		unknown.Matches = append(unknown.Matches, j.Dir)
	}
	return nil, unknown
}

// sameDir reports whether dir is the directory that a text names, if the text is a path to one; a
// name of a job is none. It asks the file system.
func sameDir(dir, text string) bool {
	if !rundir.IsPath(text) {
		return false
	}
	a, errA := os.Stat(dir)
	b, errB := os.Stat(text)
	return errA == nil && errB == nil && os.SameFile(a, b)
}

// Refresh asks the launcher how the job is now, and sets j.Job. After an error j.Job is as it was.
func (j *Job) Refresh(ctx context.Context) error {
	return j.askForJob(ctx, http.MethodGet, api.PathJob, nil)
}

// Cluster asks the launcher for what a planner must know of the hosts of the job and the links
// between them, and returns the text of a file of the cluster (docs/formats/cluster.md).
func (j *Job) Cluster(ctx context.Context) (text json.RawMessage, err error) {
	err = j.askFor(ctx, http.MethodGet, api.PathCluster, nil, &text)
	return text, err
}

// Resize asks the launcher for another number of workers, and sets j.Job. It does not wait for
// them. who, here and below, says for the job's ledger who asks.
func (j *Job) Resize(ctx context.Context, workers int, who string) error {
	return j.askForJob(ctx, http.MethodPost, api.PathResize, api.Resize{Workers: workers, Who: who})
}

// Allot asks the launcher for so many workers on each host, and sets j.Job. It does not wait for
// them. Without slots, the hosts say again how many workers they take.
func (j *Job) Allot(ctx context.Context, slots map[string]int, who, because string) error {
	if slots == nil {
		slots = map[string]int{} // a request without slots would be refused
	}
	return j.askForJob(ctx, http.MethodPost, api.PathAllot,
		api.Allot{Slots: slots, Who: who, Because: because})
}

// Limit asks the launcher to hold what each host of the job sends to the others to so many bytes a
// second, and sets j.Job; 0 = there is no limit. It does not wait for the other hosts.
func (j *Job) Limit(ctx context.Context, bytes uint64, who string) error {
	return j.askForJob(ctx, http.MethodPost, api.PathLimit, api.Limit{Bytes: &bytes, Who: who})
}

// Park asks the launcher for a checkpoint at the end of the step, after which the workers are
// ended, and sets j.Job. It does not wait for that.
func (j *Job) Park(ctx context.Context, who string) error {
	return j.askForJob(ctx, http.MethodPost, api.PathPark, api.Park{Who: who})
}

// ReportLostHost tells the launcher on this host whose run has the directory dir that another host
// of its job is gone, as who knows. The job may be led from any host. It asks one launcher after
// the other until one takes it; the error is what the last one said, or ErrEnded where there is
// none.
func ReportLostHost(ctx context.Context, dir, host, who string) error {
	sockets, err := rundir.List("", rundir.ControlSuffix)
	if err != nil {
		return err
	}
	last := ErrEnded
	for _, socket := range sockets {
		last = AtSocket(socket).askFor(ctx, http.MethodPost, api.PathLost,
			api.Lost{Host: host, Dir: dir, Who: who}, new(struct{}))
		if last == nil {
			return nil
		}
	}
	return last
}

// Set asks the launcher for another setting, such as "batch=512", and sets j.Job. It does not wait
// for the end of the step from which on the job has it.
func (j *Job) Set(ctx context.Context, assign, who string) error {
	return j.askForJob(ctx, http.MethodPost, api.PathSet, api.Set{Assign: assign, Who: who})
}

// PlanSet asks the launcher what is predicted of another setting.
func (j *Job) PlanSet(ctx context.Context, assign, who string) (c setting.Change, err error) {
	err = j.askFor(ctx, http.MethodPost, api.PathSet,
		api.Set{Assign: assign, Plan: true, Who: who}, &c)
	return c, err
}

// Reshape asks the launcher for another mesh, and sets j.Job. It does not wait for the mesh.
func (j *Job) Reshape(ctx context.Context, mesh, who string) error {
	return j.askForJob(ctx, http.MethodPost, api.PathReshape, api.Reshape{Mesh: mesh, Who: who})
}

// PlanReshape asks the launcher what another mesh would cost.
func (j *Job) PlanReshape(ctx context.Context, mesh, who string) (p api.Plan, err error) {
	err = j.askFor(ctx, http.MethodPost, api.PathReshape,
		api.Reshape{Mesh: mesh, Plan: true, Who: who}, &p)
	return p, err
}

// Stop asks the launcher for the end of the job: when its step ends, or now; and sets j.Job. It
// does not wait for the end.
func (j *Job) Stop(ctx context.Context, now bool, who string) error {
	return j.askForJob(ctx, http.MethodPost, api.PathStop, api.Stop{Now: now, Who: who})
}

// Drain asks the launcher to free a host of the job's workers, and sets j.Job. It does not wait
// until they are gone.
func (j *Job) Drain(ctx context.Context, host, who string) error {
	return j.askForJob(ctx, http.MethodPost, api.PathDrain, api.Drain{Host: host, Who: who})
}

// Recover has this host lead the job, without the hosts that are gone for good, and sets j.Job.
func (j *Job) Recover(ctx context.Context, who string) error {
	return j.askForJob(ctx, http.MethodPost, api.PathRecover, api.Recover{Force: true, Who: who})
}

// Invite asks the launcher for a token with which other hosts join within a lifetime.
func (j *Job) Invite(ctx context.Context, life time.Duration, who string) (i api.Invitation,
	err error) {
	err = j.askFor(ctx, http.MethodPost, api.PathToken,
		api.Invite{Seconds: int64(life / time.Second), Who: who}, &i)
	return i, err
}

// Refusal is a launcher's answer to a request that it does not carry out.
type Refusal struct{ Reason string }

// Error returns the reason.
func (e *Refusal) Error() string { return e.Reason }

// askForJob sends a request, waits for the answer, which is how the job is now, and sets j.Job.
// After an error j.Job is as it was. A nil body is none.
func (j *Job) askForJob(ctx context.Context, method, path string, body any) error {
	var now api.Job
	if err := j.askFor(ctx, method, path, body, &now); err != nil {
		return err
	}
	j.Job = now
	return nil
}

// askFor sends a request with a body, nil = none, and waits for its answer, which it reads into
// into. It makes a connection for this one request, and waits no longer than patience. The error is
// ErrEnded, a *Refusal, the cause of ctx, or about what the launcher says.
func (j *Job) askFor(ctx context.Context, method, path string, body, into any) error {
	var payload io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("control: %w", err)
		}
		payload = bytes.NewReader(text)
	}
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	request, err := http.NewRequestWithContext(limited, method, "http://job"+path, payload)
	if err != nil {
		return fmt.Errorf("control: %w", err)
	}
	transport := &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", j.socket)
		}}
	reply, err := transport.RoundTrip(request)
	if err != nil {
		return j.explainFailure(ctx, err)
	}
	defer reply.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(reply.Body, maxAnswer))
	if err != nil {
		return j.explainFailure(ctx, err)
	}
	if reply.StatusCode == http.StatusNotFound {
		return j.otherProtocol(answer)
	}
	if reply.StatusCode != http.StatusOK {
		var refusal api.Error
		if json.Unmarshal(answer, &refusal) != nil || refusal.Error == "" {
			refusal.Error = fmt.Sprintf("control: the launcher at %s answers %s", j.socket,
				reply.Status)
		}
		return &Refusal{refusal.Error}
	}
	err = api.CheckNames(answer)
	if err == nil {
		err = json.Unmarshal(answer, into)
	}
	if err != nil {
		return fmt.Errorf("control: the launcher at %s does not speak this version's language: %w",
			j.socket, err)
	}
	return nil
}

// protocolPath finds the protocol of a launcher in the list of its paths.
var protocolPath = pattern.New(`there are GET /v([0-9]+)/`)

// otherProtocol returns the error for a launcher that knows none of our paths. It lists its own.
// answer is the text of the launcher.
func (j *Job) otherProtocol(answer []byte) error {
	theirs := "another protocol"
	if m := protocolPath.FindSubmatch(answer); m != nil {
		theirs = "protocol " + string(m[1])
	}
	return fmt.Errorf("the launcher at %s speaks %s of control sockets, this command (shoal %s) "+
		"protocol %d: use the version of shoal that started the job", j.socket, theirs,
		version.Version, api.Protocol)
}

// explainFailure returns the error for a conversation that failed: mostly the launcher has ended
// before it or in it. ctx is the caller's, without the limit of patience.
func (j *Job) explainFailure(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("control: the launcher at %s has not answered for %v; is it stopped? "+
			"fuser %[1]s tells its process", j.socket, patience)
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, fs.ErrNotExist),
		errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF),
		errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return ErrEnded
	}
	return fmt.Errorf("control: %w", err)
}
