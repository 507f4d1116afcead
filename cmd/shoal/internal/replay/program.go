package replay

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/shoal-ml/shoal/decide/sched"
	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/internal/strict"
	"github.com/shoal-ml/shoal/launcher/policies"
)

// A policy that is a program: it gets a line of JSON for each decision and answers one. One
// goroutine asks it, that of the command, which waits for an answer as long as --answer-in says.
// Another waits for its end.

const (
	// firstIn is how long the first answer may take at least, while the program starts.
	firstIn = 20 * time.Second
	// longestLine is the bytes of a line that a program writes at most.
	longestLine = 16 << 20
)

// program implements sched.Share. Where the program fails it panics with the reason, which the
// machine turns into a fault, and another policy decides.
type program struct {
	running *group.Group // the end of its context ends the program
	pid     int          // number of its process
	in, out *os.File
	lines   *bufio.Scanner
	next    time.Duration // for how long the next answer is waited for
	within  time.Duration // and for how long each after it
	broken  error         // why it is asked no more; nil = it is
}

// programJob is a job as a program gets it. Times are in seconds.
type programJob struct {
	Job      string        `json:"job"`
	Tenant   string        `json:"tenant,omitempty"`
	Arrived  float64       `json:"arrived"`
	Asked    int           `json:"asked"`
	Slots    int           `json:"slots"`
	Left     float64       `json:"left"`  // units of work
	Speed    []sched.Point `json:"speed"` // units of work a second, by slots
	Attained float64       `json:"attained"`
	Deadline float64       `json:"deadline,omitempty"`
	Priority int           `json:"priority,omitempty"`
}

// programView is what a program gets.
type programView struct {
	Now   float64      `json:"now"`
	Slots int          `json:"slots"`
	Jobs  []programJob `json:"jobs"`
}

// programAnswer is what a program answers: the slots of the jobs that are to have some.
type programAnswer struct {
	Want    map[string]int    `json:"want"`
	Because map[string]string `json:"because"`
	// Again is the seconds until it is to be asked again; 0 = when something happens.
	Again float64 `json:"again"`
}

// checkProgram returns what is wrong with the file of a program; nil = nothing. It asks the file
// system.
func checkProgram(file string) error {
	if file == "" {
		return cli.Usagef("--policy exec: names no program; write exec:./mine.py")
	}
	if err := policies.CheckFile(file); err != nil {
		return cli.Usagef("--policy exec: %v", err)
	}
	return nil
}

// startProgram starts a program, each of whose answers may take so long; one that ends with .py is
// run by Python. The program ends with g, whose owner can wait for that. The caller calls stop.
func startProgram(g *group.Group, file string, within time.Duration) (*program, error) {
	path, err := filepath.Abs(file)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(path)
	if strings.HasSuffix(path, ".py") {
		cmd = exec.Command("python3", path)
	}
	theirIn, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	out, theirOut, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, theirIn.Close(), in.Close())
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirIn, theirOut, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = cmd.Start()
	_ = errors.Join(theirIn.Close(), theirOut.Close()) // the program has its own
	if err != nil {
		_ = errors.Join(in.Close(), out.Close()) // the other error says more
		return nil, cli.Usagef("--policy exec:%s: %v", file, policies.ExplainStart(err, path))
	}
	p := &program{running: group.New(g.Context()), pid: cmd.Process.Pid, in: in, out: out,
		lines: bufio.NewScanner(out), next: max(firstIn, within), within: within}
	p.lines.Buffer(nil, longestLine)
	p.running.Go("program "+file, func(ctx context.Context) error {
		<-ctx.Done()
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // it may have ended
		_ = cmd.Wait()
		return nil
	})
	g.Go("program "+file, func(context.Context) error { return p.running.Wait() })
	return p, nil
}

// stop ends the program and what it has started, and waits for it.
func (p *program) stop() {
	_ = p.in.Close()
	p.running.Stop(nil)
	_ = p.running.Wait()
	_ = p.out.Close()
}

// Decide implements sched.Share: the program decides, for which it waits. It panics where the
// program has not answered as it must, and at each call after that.
func (p *program) Decide(v *sched.View, _ []byte) (sched.Decision, []byte) {
	if p.broken == nil {
		d, err := p.ask(v)
		if err == nil {
			return d, nil
		}
		p.broken = err
	}
	panic("the program " + p.broken.Error())
}

// ask asks the program once. After an error it is not to be called again: an answer that comes late
// would be taken for that to another question.
func (p *program) ask(v *sched.View) (d sched.Decision, err error) {
	view := programView{Now: seconds(v.Now), Slots: v.Slots, Jobs: []programJob{}}
	for _, j := range v.Jobs {
		view.Jobs = append(view.Jobs, programJob{string(j.ID), j.Tenant, seconds(j.Arrived),
			j.Asked, j.Slots(), j.Left.Mean, j.Speed, j.Attained, seconds(j.Deadline), j.Priority})
	}
	text, err := json.Marshal(view)
	if err != nil {
		return d, err
	}
	within := p.next
	end := time.Now().Add(within)
	p.next = p.within
	if err := errors.Join(p.in.SetWriteDeadline(end), p.out.SetReadDeadline(end)); err != nil {
		return d, err
	}
	if _, err := p.in.Write(append(text, '\n')); err != nil {
		return d, fmt.Errorf("takes no question: %w", err)
	}
	if !p.lines.Scan() {
		if err := p.lines.Err(); errors.Is(err, bufio.ErrTooLong) {
			return d, fmt.Errorf("answers a line of more than %d bytes", longestLine)
		} else if errors.Is(err, os.ErrDeadlineExceeded) && !policies.HasEnded(p.pid) {
			return d, fmt.Errorf("gives no answer within %v", within)
		} else if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return d, fmt.Errorf("gives no answer: %w", err)
		}
		return d, errors.New("has ended")
	}
	return parseAnswer(v, p.lines.Bytes())
}

// parseAnswer returns what a line decides of the jobs of a view. It does not check whether they can
// have what they are to have: the machine does.
func parseAnswer(v *sched.View, line []byte) (d sched.Decision, err error) {
	var a programAnswer
	if err := strict.JSON(line, &a); err != nil {
		return d, fmt.Errorf(`answers no line such as {"want": {"bert-1": 8}}: %w`, err)
	}
	if a.Want == nil {
		return d, errors.New(`answers without "want"; where nobody gets slots it is {}`)
	}
	d.Want = make([]int, len(v.Jobs))
	because := make([]string, len(v.Jobs))
	known := 0
	for i, j := range v.Jobs {
		n, there := a.Want[string(j.ID)]
		if there {
			known++
		}
		d.Want[i], because[i] = n, a.Because[string(j.ID)]
	}
	if known != len(a.Want) {
		return d, errors.New("names a job that there is not")
	}
	if !(a.Again >= 0 && a.Again < 1e9) {
		return d, fmt.Errorf("is to be asked again in %v s: write a number from 0 on", a.Again)
	}
	if a.Again > 0 {
		d.Again = v.Now + int64(1000*a.Again)
	}
	d.Because = func(i int) string { return because[i] }
	return d, nil
}
