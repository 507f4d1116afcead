package launcher

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/shoal-ml/shoal/job"
	"github.com/shoal-ml/shoal/launcher/proc"
	"github.com/shoal-ml/shoal/launcher/runs"
	"github.com/shoal-ml/shoal/setting"
)

// The methods of registry lock its mutex for a moment, unless they say that it is held. What they
// return is a copy.

// registry is what a launcher knows of the workers and hosts of the job: of all of them where the
// job is led, elsewhere of those of this host. It is safe for concurrent use, and does no I/O.
type registry struct {
	initial int           // workers that the job begins with; 0 = it begins on another host
	known   chan struct{} // closed when it is known what the job is
	changed chan struct{} // holds a token for Run or Serve when there is something to decide about

	mu      sync.Mutex  // guards what follows
	host    string      // name of this host in the job
	machine string      // what this host calls itself
	job     *jobMessage // what the job is; nil = not known yet

	workers map[int]*workerRecord // but for those that are forgotten
	endings []ending              // their endings, in the order in which they came
	old     forgotten             // what is left of the workers that are forgotten

	ordered  int // workers that are to be started on this host
	telling  int // endings of which the membership is being told
	stopping int // length of endings when the launcher began to stop; -1 = it has not
	shutdown shutdown

	leadership
	offers   map[string]bool   // the other hosts that have offered room, on the host that leads
	machines map[string]string // by host: what it calls itself, where that is not its name
	expected map[string]bool   // hosts that have yet to tell what they know, on a new leader
	// followed says that another host has led: all initial workers had started then, and those of
	// hosts that are lost are not known here any more.
	followed bool

	// denied are the hosts that were asked to leave when the job could not do without them, on the
	// host that leads.
	denied map[string]bool

	allLost bool  // no member is left, and none has finished its work
	ended   bool  // the membership has ended: no worker is to be started any more
	over    bool  // this host is not needed any more
	leaving bool  // this host was asked to leave
	fatal   error // why the job cannot go on here; nil = it can
}

// leadership says which hosts lead and have led. The registry's lock guards it.
type leadership struct {
	leader   string // the host that leads; "" = nobody does, as far as is known
	lastLost string // the last host that led and was lost; "" = none was
	// stuckAfter is the last generation after which too few hosts were left to decide; 0 = none.
	stuckAfter uint64
}

// workerRecord is a worker process as the registry knows it. The registry's lock guards those in
// its map; whoever gets one from a method has a copy.
type workerRecord struct {
	worker    int
	host      string
	pid       int // 0 = the process is being started
	joined    bool
	metrics   map[string]float64 // newest report; nil = none
	exit      *proc.Exit         // nil = the process runs
	survived  bool               // the job goes on without this worker
	dismissed bool               // shoal ended the worker, because it was not needed
	parked    bool               // it waits for its end after a checkpoint, or has ended so
	// told says that some host led when the worker ended, as far as was known. If that was lost
	// already, nobody takes the failure for the effect of a change on trial: members have changed
	// then, and the next head measures anew, or the change is void.
	told bool
	// lostPeer says why the worker's last call that waited for a lost worker failed; "" = none did.
	lostPeer string
	// because is the lostPeer that made this worker exit; "" = another cause.
	because string
	tail    []string // last lines of output, of a worker on another host
	log     string   // HOST:PATH of the full log, of a worker on another host
}

// newRegistry returns the registry of a job that begins here with initial workers, or of one to
// join if that is 0. machine is what this host calls itself.
func newRegistry(machine string, initial int) *registry {
	return &registry{initial: initial, host: machine, machine: machine,
		known: make(chan struct{}), changed: make(chan struct{}, 1),
		workers: map[int]*workerRecord{},
		offers:  map[string]bool{}, machines: map[string]string{}, expected: map[string]bool{},
		denied:   map[string]bool{},
		stopping: -1, shutdown: newShutdown()}
}

// signalChange has whoever waits for changed look again. It does not wait.
func (r *registry) signalChange() {
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// setHost stores the name of this host in the job. It returns whether the job begins here: then
// this host leads.
func (r *registry) setHost(host string) (begins bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.host = host
	if r.initial > 0 {
		r.leader = host
	}
	return r.initial > 0
}

// setJob stores what the job is, and closes known. It is called once, and keeps j, which is not
// changed any more.
func (r *registry) setJob(j *jobMessage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.job = j
	close(r.known)
}

// knownJob is what the job is, not to be changed; nil = that is not known yet.
func (r *registry) knownJob() *jobMessage {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.job
}

// jobName is what the job is called; "joining" as long as that is not known.
func (r *registry) jobName() string {
	if j := r.knownJob(); j != nil {
		return j.Spec.Name
	}
	return "joining"
}

// requestedName is the name that the job was started with; "" as long as that is not known.
func (r *registry) requestedName() string {
	if j := r.knownJob(); j != nil {
		return j.Asked
	}
	return ""
}

// jobSpec is the spec of the job; the zero value while the job is not known.
func (r *registry) jobSpec() job.Spec {
	if j := r.knownJob(); j != nil {
		return j.Spec
	}
	return job.Spec{}
}

// findOrAddRecord returns the record of a worker itself, not a copy, and makes it at the first
// mention of the worker, as one of the host. r.mu is held.
func (r *registry) findOrAddRecord(worker int, host string) *workerRecord {
	w := r.workers[worker]
	if w == nil {
		w = &workerRecord{worker: worker, host: host}
		r.workers[worker] = w
	}
	return w
}

// register stores what a host says of a worker, and signals a change. It returns false for a
// message that it does not heed: about a worker of another host, one that is forgotten, an end that
// is known, or metrics of a job that is not.
func (r *registry) register(host string, m *message) (heeded bool) {
	worker, is := m.aboutWorker()
	if !is {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.old.numbers.has(worker) {
		return false
	}
	w := r.findOrAddRecord(worker, host)
	switch {
	case w.host != host || m.Ended != nil && w.exit != nil:
		return false // a message from before the worker was lost
	case m.Started != nil:
		w.pid = m.Started.PID
	case m.Joined != nil:
		w.joined = true
	case m.Report != nil && r.job == nil:
		return false
	case m.Report != nil:
		w.metrics = m.Report.Metrics
	case m.Park != nil:
		w.parked = m.Park.Problem == ""
		r.shutdown.park.setOutcome(m.Park)
	case m.Ended != nil:
		e := m.Ended.exitOf()
		w.exit, w.survived, w.dismissed = &e, m.Ended.Survived, m.Ended.Dismissed
		w.told = r.leader != ""
		w.because, w.tail, w.log = m.Ended.Because, m.Ended.Tail, m.Ended.Log
		if host != r.host {
			w.log = host + ":" + w.log
		}
		r.old.peak = max(r.old.peak, len(r.workers)-len(r.endings))
		r.endings = append(r.endings, ending{worker, e, m.Ended.Survived})
		r.forgetOldWorkers()
	}
	r.signalChange()
	return true
}

// registerAndCheckHost registers a worker that is not known yet as one of a host, and reports
// whether a worker runs on that host, and is not forgotten.
func (r *registry) registerAndCheckHost(host string, worker int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.old.numbers.has(worker) && r.findOrAddRecord(worker, host).host == host
}

// addOrdered adds n, which may be negative, to the number of workers that are to be started on
// this host.
func (r *registry) addOrdered(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ordered += n
}

// setRunning registers that the process of an ordered worker runs on this host; late says that the
// worker is none of those with which the job began. It returns whether the launcher stops its
// workers already: then this worker may have missed the signal, and a late one counts as dismissed.
func (r *registry) setRunning(worker, pid int, late bool) (stopping bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ordered--
	r.findOrAddRecord(worker, r.host).pid = pid
	stopping = r.stopping >= 0
	if stopping && late {
		r.shutdown.dismissed = append(r.shutdown.dismissed, worker)
	}
	return stopping
}

// setLostPeer registers why a call of a worker failed that waited for another, which is gone: the
// worker that waited mostly ends too, because of that.
func (r *registry) setLostPeer(worker int, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w := r.workers[worker]; w != nil {
		w.lostPeer = why
	}
}

// beginExit registers that a process of this host has ended, and returns the worker and whether
// this host leads. The job is not judged until endExit is called.
func (r *registry) beginExit(worker int) (w workerRecord, leads bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.telling++
	w = *r.findOrAddRecord(worker, r.host)
	w.dismissed = slices.Contains(r.shutdown.dismissed, worker)
	return w, r.leader == r.host
}

// endExit ends what beginExit begins: the membership has heard of the end of a worker.
func (r *registry) endExit() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.telling--
}

// worker is a copy of the record of a worker; false if there is none.
func (r *registry) worker(worker int) (w workerRecord, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.workers[worker] == nil {
		return workerRecord{}, false
	}
	return *r.workers[worker], true
}

// living lists the workers that run and that this host knows: those of all hosts where it leads.
func (r *registry) living() (list []workerRecord) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, worker := range slices.Sorted(maps.Keys(r.workers)) {
		if w := r.workers[worker]; w.exit == nil {
			list = append(list, *w)
		}
	}
	return list
}

// unusedSpare reports whether a worker is a spare that has never joined: nobody counts on it.
func (r *registry) unusedSpare(worker int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.job == nil {
		return false
	}
	spec := r.job.Spec
	return spec.Spares > 0 && worker >= spec.Workers && !r.hasJoined(worker)
}

// hasJoined reports whether a worker has joined the job. r.mu is held.
func (r *registry) hasJoined(worker int) bool {
	return r.workers[worker] != nil && r.workers[worker].joined
}

// anyJoined reports whether some worker has joined the job. r.mu is held.
func (r *registry) anyJoined() bool {
	for _, w := range r.workers {
		if w.joined {
			return true
		}
	}
	return r.old.joined
}

// countWorkers counts the workers that were or are to be started, as far as this host knows. r.mu
// is held.
func (r *registry) countWorkers() int {
	known := r.old.ended + len(r.workers) + r.ordered
	if r.followed || r.ended {
		return known
	}
	return max(known, r.initial)
}

// verdict decides by the rules of the function judge about the job from the workers that have
// ended, where the job is led; elsewhere, and as long as something is missing, the verdict is
// empty. So it is on a new head until all hosts have told what they know.
func (r *registry) verdict() verdict {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.leader != r.host || r.job == nil || r.telling > 0 || len(r.expected) > 0 {
		return verdict{}
	}
	return judge(r.countWorkers(), r.old, r.endings, r.hasJoined, r.anyJoined(), r.allLost)
}

// mayLeave reports whether this host is not needed any more and its workers have ended: workers
// that were let go may still save a model, say. A host that was asked to leave is then drained,
// unless the job has ended. The error is why the job cannot go on here.
func (r *registry) mayLeave() (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	idle := r.ordered == 0
	for _, w := range r.workers {
		idle = idle && (w.host != r.host || w.exit != nil)
	}
	asked := r.leaving && r.leader != r.host
	if idle && asked && !r.over && !r.ended && r.fatal == nil {
		r.shutdown.drained = true
	}
	return idle && (r.over || asked), r.fatal
}

// setFatal stores why the job cannot go on here. The first reason counts.
func (r *registry) setFatal(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fatal == nil {
		r.fatal = err
	}
}

// failureReport is the report about the worker that v, which has a fault, is about; started is when
// the run began here, and trial the change that was measured last, nil = none was. It lacks the
// output of a worker of this host.
func (r *registry) failureReport(v verdict, started time.Time, trial *setting.Change) *Failure {
	r.mu.Lock()
	defer r.mu.Unlock()
	w, e := r.workers[v.culprit.worker], v.culprit.exit
	f := &Failure{Job: r.job.Spec.Name, Rank: v.culprit.worker,
		// of workers that ended before this host came to lead, only the numbers are known
		Size: max(r.old.ended+len(r.workers), r.initial, v.culprit.worker+1), Host: w.host,
		Exit: e, After: e.Ended.Sub(started),
		Early: v.fault == neverJoined, Because: w.because, Tail: w.tail, Log: w.log}
	if host := r.lastLost; v.fault == allLost && e.OK() && host != "" { // no worker is to blame
		f.Host, f.Exit.Lost = host, "was let go: the state of the job was lost with host "+host
	}
	if v.fault == allLost && e.Signal == 0 && trial != nil && trial.Policy != "" {
		f.Trial = trial
	}
	return f
}

// runResult is what the registry knows of the end of a run; Dir, OK, Error, Started, Seconds,
// Unstarted, LostHost, Drained, Changes and LostSamples are not filled in.
func (r *registry) runResult() *runs.Result {
	r.mu.Lock()
	defer r.mu.Unlock()
	result := &runs.Result{Job: "joining", Alone: !r.anyJoined(), StoppedBy: r.shutdown.who,
		Parked: r.isParked(), Workers: []runs.WorkerResult{}}
	if r.job != nil {
		result.Job = r.job.Spec.Name
	}
	if r.leader != r.host {
		result.GoesOn = r.leader
		if r.leader == "" && r.shutdown.drained { // the host that leads was lost after that
			result.GoesOn = r.lastLost
		}
	}
	for i, e := range r.endings {
		result.Workers = append(result.Workers, runs.WorkerResult{Rank: e.worker, PID: e.exit.PID,
			How: e.exit.String(),
			Stopped: r.stopping >= 0 && i >= r.stopping ||
				slices.Contains(r.shutdown.dismissed, e.worker),
			Seconds: e.exit.Ended.Sub(e.exit.Started).Seconds()})
	}
	return result
}

// anyEnded reports whether some worker has ended.
func (r *registry) anyEnded() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.endings) > 0
}

// mostEnded is how many of the workers that have ended a description of the job lists.
const mostEnded = 64

// recentWorkers lists the workers that run and the mostEnded that ended last, by number, and
// returns whether any worker has joined.
func (r *registry) recentWorkers() (list []workerRecord, joined bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	recent := map[int]bool{}
	for _, e := range r.endings[max(len(r.endings)-mostEnded, 0):] {
		recent[e.worker] = true
	}
	for _, worker := range slices.Sorted(maps.Keys(r.workers)) {
		if w := r.workers[worker]; w.exit == nil || recent[worker] {
			list = append(list, *w)
		}
	}
	return list, r.anyJoined()
}
