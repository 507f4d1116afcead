package launcher

import (
	"context"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/shoal-ml/shoal/agent"
	"github.com/shoal-ml/shoal/internal/gpu"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/internal/numa"
	"github.com/shoal-ml/shoal/internal/rundir"
	"github.com/shoal-ml/shoal/job"
	"github.com/shoal-ml/shoal/launcher/proc"
)

// supervisor has the worker processes of this host: it starts them, and knows which have ended. Any
// goroutine may call its methods, which lock mu for a moment unless they say that it is held.
type supervisor struct {
	// nodes are the memory nodes of this host; nil = there is no choice. Like homes it is set by
	// newSupervisor, and not changed then.
	nodes []numa.Node
	homes []numa.Node // those nodes to which workers are bound; none = workers run anywhere
	// shield says that workers begin with SIGTERM ignored; newLauncher sets it.
	shield bool
	// slowImport is how long a template may import until people are told; newLauncher sets it.
	slowImport time.Duration

	mu        sync.Mutex // guards what follows
	program   string     // path of the job's program; "" = the job is not known yet
	env       environment
	template  *proc.Template     // forks workers; nil = they are started anew
	tellSlow  func()             // what startTemplate has got, until a worker waits; nil = nothing
	orders    []agent.StartOrder // orders that wait until the job is known
	processes map[int]*process   // by worker, also the mostEnded that ended last
	ended     []int              // of processes, those that have ended and are silent, oldest first
	attempts  int                // starts of workers so far
	first     int                // workers that begin with the job on this host
	gpus      gpus               // that workers take
	faults    []ending           // failures of workers of which the membership has not heard

	// reportFaultsAtOnce says that the membership hears of faults without delay.
	reportFaultsAtOnce bool
}

// process is a worker process of this host. What the supervisor's lock does not guard is set before
// the supervisor has the process, and not changed then.
type process struct {
	*proc.Worker
	worker int
	output *proc.Output
	home   *numa.Node // memory node that the process is bound to; nil = none
	gpu    string     // which GPU it has, as people are told; "" = there is none
	ended  bool       // the process has ended; guarded by the supervisor's lock
	fault  bool       // it failed, which ends the job; guarded by the supervisor's lock
	silent bool       // the log has all output, and is closed; guarded by the supervisor's lock
}

// newSupervisor makes a supervisor of no processes, and reads from the system which memory nodes
// this host has, unless a test makes some up.
func newSupervisor(nodes []numa.Node) *supervisor {
	s := &supervisor{processes: map[int]*process{}}
	s.findNodes(nodes)
	return s
}

// setProgram stores what to run, and in which environment.
func (s *supervisor) setProgram(program string, env environment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.program, s.env = program, env
	s.gpus = findGPUs(env.hostVariables(1, "", 0), gpu.Folders(), gpu.Devices())
}

// startTemplate starts the process from which workers are forked, if the job wants one and this
// host takes workers, with goroutines in g. Its output goes to the file log. ended is called, on
// one of these goroutines, with the reason why it has ended; workers are started anew from then on.
// slow is called, on a goroutine of its own, where the first worker waits for longer than
// slowImport. mu is held until the process runs, and not while it imports.
func (s *supervisor) startTemplate(g *group.Group, log string, slow func(),
	ended func(why string)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	spec := s.env.spec
	options, words, is := job.SplitPython(spec.Command)
	if len(spec.Prefork) == 0 || !is || s.env.here < 1 {
		return nil
	}
	command := append(slices.Clone(options), "-c", templateProgram,
		strings.Join(spec.Prefork, ","))
	var err error
	s.template, err = proc.StartTemplate(g, proc.Command{Path: s.program,
		Args:   append(command, words...),
		Env:    s.env.hostVariables(s.env.here, s.env.addr, s.env.port),
		Shield: s.shield},
		log, ended)
	if err == nil {
		s.tellSlow = slow
	}
	return err
}

// templateProgram is what the interpreter of a template runs.
const templateProgram = "from shoal._runtime.template import main; main()"

// stopTemplate has the template, if there is one, fork no more workers: those that are still to
// start are started anew. It does not wait.
func (s *supervisor) stopTemplate() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.template.Stop()
}

// postponeOrder keeps an order until it is known what to run. It returns false, and keeps nothing,
// if that is known.
func (s *supervisor) postponeOrder(o agent.StartOrder) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.program != "" {
		return false
	}
	s.orders = append(s.orders, o)
	return true
}

// popPostponed removes the orders that postponeOrder has kept, and returns them.
func (s *supervisor) popPostponed() []agent.StartOrder {
	s.mu.Lock()
	defer s.mu.Unlock()
	orders := s.orders
	s.orders = nil
	return orders
}

// countFirst counts those workers of an order that begin with the job.
func (s *supervisor) countFirst(o agent.StartOrder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.first += max(min(o.Count, s.env.spec.Workers-o.First), 0)
}

// startProcess starts the process of a worker; token is its secret for the agent. For torch a late
// worker begins as a job of one. output makes the worker's Output, which a goroutine of g closes
// when nothing can write to it any more. The caller waits for the end of the process, as proc.Start
// says. startProcess blocks, without mu, while a template that is to fork the process imports.
func (s *supervisor) startProcess(g *group.Group, worker int, late bool, token string,
	output func() (*proc.Output, error)) (*process, error) {
	s.mu.Lock()
	program, env, template, tellSlow := s.program, s.env, s.template, s.tellSlow
	s.tellSlow = nil
	size := env.spec.Workers
	at := position{worker: worker, token: token, rank: worker, size: size, local: s.attempts,
		here: s.first, port: env.port}
	s.attempts++
	var home *numa.Node
	home, env.cores = s.chooseNode(env)
	take := s.gpus.takeFirst
	if late {
		at = position{worker: worker, token: token, size: 1, port: freePort()}
		env.addr = "127.0.0.1"
		take = s.gpus.takeLate
	}
	var text string
	at.gpus, text = take(worker)
	s.mu.Unlock()
	started := false
	defer func() {
		if !started {
			s.releaseGPUs(worker)
		}
	}()
	out, err := output()
	if err != nil {
		return nil, err
	}
	p := &process{worker: worker, output: out, gpu: text}
	command := proc.Command{Path: program, Args: env.spec.Command, Env: env.workerVariables(at),
		Template: template, Shield: s.shield}
	if home != nil {
		command.CPUs = home.CPUs
	}
	if tellSlow != nil {
		defer time.AfterFunc(s.slowImport, tellSlow).Stop()
	}
	if p.Worker, err = proc.Start(g, command, out); err != nil {
		_ = out.Close()
		return nil, err
	}
	if p.Bound() {
		p.home = home
	}
	started = true
	s.mu.Lock()
	s.processes[worker] = p
	s.mu.Unlock()
	g.Go("close a log", func(context.Context) error {
		<-p.Silent() // a log that stays open would cost a descriptor for each lost worker
		_ = out.Close()
		s.setSilent(p)
		return nil
	})
	return p, nil
}

// setSilent records that the log of a process has all output and is closed.
func (s *supervisor) setSilent(p *process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.silent = true
	s.forgetOldestProcess(p)
}

// forgetOldestProcess forgets the process that ended first, if more than mostEnded have ended by
// the end of p: a job that goes on for months loses any number of workers. s.mu is held.
func (s *supervisor) forgetOldestProcess(p *process) {
	if !p.ended || !p.silent || p.fault {
		return
	}
	s.ended = append(s.ended, p.worker)
	if len(s.ended) > mostEnded {
		delete(s.processes, s.ended[0])
		s.ended = s.ended[1:]
	}
}

// processOf is the process of a worker, which the supervisor keeps; nil = the worker was not
// started on this host, or ended long ago.
func (s *supervisor) processOf(worker int) *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.processes[worker]
}

// allProcesses lists the processes that were started here: all that run or may write, and those
// that ended last.
func (s *supervisor) allProcesses() (list []*process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, worker := range slices.Sorted(maps.Keys(s.processes)) {
		list = append(list, s.processes[worker])
	}
	return list
}

// setEnded records that a process has ended. It returns whether the membership hears of the end at
// once: a fault is kept for popFaults otherwise.
func (s *supervisor) setEnded(p *process, e ending) (atOnce bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.ended, p.fault = true, !e.exit.OK() && !e.survived
	s.gpus.release(p.worker)
	s.forgetOldestProcess(p)
	if p.fault && !s.reportFaultsAtOnce {
		s.faults = append(s.faults, e)
	}
	return s.reportFaultsAtOnce
}

// popFaults removes the faults of which the membership has not heard, and returns them. Once the
// launcher stops the workers, the membership hears of later faults at once.
func (s *supervisor) popFaults(stopping bool) []ending {
	s.mu.Lock()
	defer s.mu.Unlock()
	faults := s.faults
	s.faults, s.reportFaultsAtOnce = nil, s.reportFaultsAtOnce || stopping
	return faults
}

// workerEnvironment is what the environments of this host's workers have in common in job j. It
// reads the environment of this process, and no state that is guarded. setJob calls it, before
// workers are started.
func (l *launcher) workerEnvironment(j jobMessage) environment {
	here := j.Spec.Workers
	if f := l.cfg.Fleet; f != nil {
		here = min(here, f.Slots)
	}
	return environment{base: rundir.Environ(), spec: j.Spec, run: j.Run, socket: l.place.Socket(),
		mark: l.place.Mark(), cores: runtime.GOMAXPROCS(0), here: here, addr: j.Addr, port: j.Port}
}

// signalWorker sends a worker a signal, or has the worker's host do it. A worker of this host that
// is being started gets no signal: startWorker sees that the launcher stops. It may wait for the
// engine's thread, which must not call it.
func (l *launcher) signalWorker(w workerRecord, sig syscall.Signal) {
	if p := l.supervisor.processOf(w.worker); p != nil {
		p.Signal(sig)
	} else if w.host != l.registry.hostName() {
		l.sendTo(w.host, &message{Signal: &signalMessage{w.worker, int(sig)}})
	}
}

// signalWorkers sends a signal to all workers that this host answers for, as signalWorker does:
// those of all hosts where the job is led. It runs on the goroutine of Run or Serve.
func (l *launcher) signalWorkers(sig syscall.Signal) {
	for _, w := range l.registry.living() {
		l.signalWorker(w, sig)
	}
}
