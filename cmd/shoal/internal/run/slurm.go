package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/fabric/tcp"
	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/internal/nodelist"
	"github.com/shoal-ml/shoal/internal/pattern"
	"github.com/shoal-ml/shoal/job"
	"github.com/shoal-ml/shoal/launcher/runs"
)

// A job in Slurm: srun starts shoal run --slurm once on each node. Task 0 begins the job, the
// others join it, as slurm_meet.go says. Where Slurm asks for the nodes, the job is parked and put
// back into Slurm's queue: Slurm takes a job that ends by itself for one that has done its work.
// The goroutine of the command runs what is here.

// slurm is what people call the manager.
const slurm = "Slurm"

// slurmTask is what Slurm says of this task. One goroutine uses it, that of the command, but for
// result, which the launcher sets before it returns.
type slurmTask struct {
	proc    int      // number of the task in its step; 0 begins the job
	nodes   []string // the nodes of the step
	node    string   // this one
	job     string   // number of the job of Slurm, of an element of an array its own
	name    string   // what scontrol calls the job: its number, or ARRAY_ELEMENT
	step    string   // number of the step
	restart string   // how often Slurm has started the job again
	dir     string   // folder that all nodes share

	met    time.Time    // when this task, which is task 0, has written the file; zero = not yet
	result *runs.Result // how the job has ended, where this host has led it; nil = elsewhere
}

// slurmNumber matches a number that Slurm gives: of a task, a job, a step or a start.
var slurmNumber = pattern.New(`^[0-9]{1,19}$`)

// readSlurmTask reads what Slurm says of this task in the environment, which get returns by name.
func readSlurmTask(get func(string) string) (*slurmTask, error) {
	missing := func(name string) error {
		return cli.Usagef("--slurm: %s is not set, so srun has not started this: write srun "+
			"--nodes 4 --ntasks-per-node 1 shoal run -f job.yaml --slurm, in a job of Slurm", name)
	}
	t := &slurmTask{job: get("SLURM_JOB_ID"), step: cmp.Or(get("SLURM_STEP_ID"), "0"),
		restart: cmp.Or(get("SLURM_RESTART_COUNT"), "0")}
	for _, name := range []string{"SLURM_PROCID", "SLURM_JOB_ID", "SLURM_NNODES",
		"SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST"} {
		if get(name) == "" {
			return nil, missing(name)
		}
	}
	array, element := get("SLURM_ARRAY_JOB_ID"), cmp.Or(get("SLURM_ARRAY_TASK_ID"), "0")
	for _, v := range []struct{ name, text string }{{"SLURM_PROCID", get("SLURM_PROCID")},
		{"SLURM_JOB_ID", t.job}, {"SLURM_STEP_ID", t.step}, {"SLURM_RESTART_COUNT", t.restart},
		{"SLURM_ARRAY_JOB_ID", cmp.Or(array, "0")}, {"SLURM_ARRAY_TASK_ID", element}} {
		if !slurmNumber.MatchString(v.text) {
			return nil, cli.Usagef("--slurm: %s=%q is no number", v.name, v.text)
		}
	}
	// The number of an array is also that of one of its elements, and scontrol takes it for all.
	if t.name = t.job; array != "" {
		t.name = array + "_" + element
	}
	var err error
	if t.nodes, err = nodelist.Expand(
		cmp.Or(get("SLURM_STEP_NODELIST"), get("SLURM_JOB_NODELIST"))); err != nil {
		return nil, cli.Usagef("--slurm: %v", err)
	}
	nodes := cmp.Or(get("SLURM_STEP_NUM_NODES"), get("SLURM_NNODES"))
	tasks := cmp.Or(get("SLURM_STEP_NUM_TASKS"), get("SLURM_NTASKS"), nodes)
	if nodes != tasks || nodes != strconv.Itoa(len(t.nodes)) {
		return nil, cli.Usagef("--slurm: the step has %s tasks on %s nodes (%d names); shoal "+
			"starts the workers of a node itself, so start it once on each: srun "+
			"--ntasks-per-node 1", tasks, nodes, len(t.nodes))
	}
	if t.proc, err = strconv.Atoi(get("SLURM_PROCID")); err != nil || t.proc >= len(t.nodes) {
		return nil, cli.Usagef("--slurm: SLURM_PROCID=%s is no task of %d", get("SLURM_PROCID"),
			len(t.nodes))
	}
	if t.node = cmp.Or(get("SLURMD_NODENAME"), t.nodes[t.proc]); tcp.CheckName(
		fabric.Host(t.node)) != nil {
		return nil, cli.Usagef("--slurm: %v", tcp.CheckName(fabric.Host(t.node)))
	}
	if t.dir = get("SLURM_SUBMIT_DIR"); t.dir == "" {
		if t.dir, err = os.Getwd(); err != nil {
			return nil, fmt.Errorf("--slurm: SLURM_SUBMIT_DIR is not set, and: %w", err)
		}
	}
	return t, nil
}

// readSlots returns how many workers the node takes where --slots does not say it: one a GPU that
// Slurm gave the job, else one a processor. get returns variables of the environment by name.
func readSlots(get func(string) string) (int, error) {
	for _, name := range []string{"SLURM_GPUS_ON_NODE", "SLURM_CPUS_ON_NODE"} {
		if get(name) == "" {
			continue
		}
		n, err := strconv.Atoi(get(name))
		if err != nil || n < 0 || n > job.MaxWorkers {
			return 0, cli.Usagef("--slurm: %s=%q is no number of workers that a node can take; "+
				"say it with --slots", name, get(name))
		}
		if n > 0 {
			return n, nil
		}
	}
	return DefaultSlots(), nil
}

// withDefaults returns a spec with what a job in Slurm has by default: it begins with the workers
// of the first node, and grows to all slots of the others.
func (t *slurmTask) withDefaults(s job.Spec, slots int) job.Spec {
	s.Grow = s.Grow || s.Spares == 0 && s.Budget == 0
	if s.Workers == 0 {
		s.Workers = max(slots, s.Min, 1)
		if s.Max > 0 {
			s.Workers = min(s.Workers, s.Max)
		}
	}
	return s
}

// address is the HOST at which the other nodes reach this one: its name, if that leads to a
// network, or else otherwise.
func (t *slurmTask) address(otherwise string) string {
	addrs, err := net.LookupHost(t.node)
	if err == nil && len(addrs) > 0 && !net.ParseIP(addrs[0]).IsLoopback() {
		return t.node
	}
	return otherwise
}

// runSlurm runs the task of this node until the job ends, and puts it back into Slurm's queue where
// Slurm has asked for the nodes before the training was done.
func (f *runFlags) runSlurm(cmd *cobra.Command, spec job.Spec) error {
	t, notes := f.task, cmd.ErrOrStderr()
	// Slurm repeats SIGTERM when the time of grace is over, and then kills.
	cmd.SetContext(cli.WithoutSecondSignal(cmd.Context()))
	var err error
	if t.proc == 0 {
		err = f.run(cmd, spec)
		t.leaveMeeting(err)
	} else {
		err = f.joinSlurm(cmd)
	}
	if cli.SignalOf(cmd.Context()) != syscall.SIGTERM || !t.isUnfinished(err) {
		return err
	}
	if why := t.requeue(cmd.Context(), notes); why != nil {
		return fmt.Errorf("job %s of Slurm is not done, and is not put back into the queue: %w; "+
			"submit it again, and it goes on from its newest checkpoint: %w", t.name, why,
			context.Cause(cmd.Context()))
	}
	return nil
}

// isUnfinished reports whether the training is not done, as far as this task is the one to say so:
// it has led the job, or it is task 0 and the job has not come to a result. err is why the job has
// ended here.
func (t *slurmTask) isUnfinished(err error) bool {
	switch r := t.result; {
	case r == nil:
		return t.proc == 0 && err != nil
	case r.GoesOn != "" || r.Drained:
		return false
	default:
		return r.Parked || err != nil
	}
}

// slurmWait bounds how long Slurm may take to answer.
const slurmWait = 20 * time.Second

// jobState matches the state of a job in what scontrol shows.
var jobState = pattern.New(`(?:^|\s)JobState=(\S+)`)

// requeue puts the job back into Slurm's queue; the error says why it is not. A job that is not
// running any more somebody has cancelled, or its time is over: Slurm would start it again all the
// same.
func (t *slurmTask) requeue(ctx context.Context, notes io.Writer) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), slurmWait)
	defer cancel()
	text, err := t.scontrol(ctx, "-o", "show", "job", t.name)
	if err != nil {
		return err
	}
	state := jobState.FindStringSubmatch(text)
	if state == nil || state[1] != "RUNNING" && state[1] != "SIGNALING" {
		return fmt.Errorf("Slurm does not call it RUNNING any more (%s): it was cancelled, or its "+
			"time is over", strings.Join(state[min(len(state), 1):], ""))
	}
	fmt.Fprintf(notes, "shoal: asks Slurm to put job %s back into its queue: it goes on from its "+
		"newest checkpoint\n", t.name) // Slurm ends this process when it does
	_, err = t.scontrol(ctx, "requeue", t.name)
	return err
}

// scontrol runs Slurm's command with these arguments, and returns what it prints.
func (t *slurmTask) scontrol(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, "scontrol", args...).CombinedOutput()
	text := strings.TrimSpace(string(out))
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return "", errors.New("there is no scontrol on the PATH of node " + t.node)
	case err != nil:
		return "", fmt.Errorf("scontrol %s: %w: %.300s", strings.Join(args, " "), err, text)
	}
	return text, nil
}

// checkHost fails where flags are wrong that count on each host of the job, as far as that shows
// before anything is opened.
func (f *runFlags) checkHost(cmd *cobra.Command) error {
	return cmp.Or(f.store.check(cmd.Flags()), f.pod.check(cmd),
		cli.RefuseEmpty(cmd.Flags(), "log-dir"), cli.CheckNewFolder("--log-dir", f.logDir))
}

// joinSlurm waits for task 0, and lends this node to the job that it begins.
func (f *runFlags) joinSlurm(cmd *cobra.Command) error {
	t := f.task
	kind, err := hostKind(f.kind)
	if err != nil {
		return err
	}
	if err := f.checkHost(cmd); err != nil {
		return err
	}
	m, err := t.awaitMeeting(cmd.Context(), cmd.ErrOrStderr(), meetingPatience)
	if err != nil {
		return err
	}
	if m.Over {
		fmt.Fprintf(cmd.ErrOrStderr(), "shoal: task 0 ended before %s joined the job\n", t.node)
		return nil
	}
	a := agentFlags{join: m.Join, slots: f.slots, name: t.node, kind: kind,
		listen: cmp.Or(f.listen, ":0"), logDir: f.logDir, store: f.store, pod: f.pod,
		manager: slurm, onEnd: func(r *runs.Result) { t.result = r }}
	return a.serve(cmd, m.Token)
}
