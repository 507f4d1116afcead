package policies_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/launcher/policies"
	"github.com/shoal-ml/shoal/launcher/proc"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/setting"
)

// behaviourVariable makes this test program a policy, which behaves as the variable says.
const behaviourVariable = "TEST_POLICY"

// TestMain runs the tests, or a policy.
func TestMain(m *testing.M) {
	if how := os.Getenv(behaviourVariable); how != "" {
		runTestPolicy(how)
		return
	}
	os.Exit(m.Run())
}

// runTestPolicy is a policy that doubles the batch, or does something wrong where how says so.
func runTestPolicy(how string) {
	switch {
	case how == "child":
		_ = syscall.Pause()
	case strings.HasPrefix(how, "leaves a "):
		leaveChild(how)
		return
	}
	fmt.Println(map[string]string{
		"newer":    `{"protocol":9,"name":"double","levers":["batch"]}`,
		"nameless": `{"protocol":1,"name":"","levers":["batch"]}`,
		"painted":  `{"protocol":1,"name":"\u001b[31mred\n","levers":["batch"]}`,
		"chatty":   `hello`,
		"painter":  `{"protocol":1,"name":"paint","levers":["batch","colour"]}`,
		"doubler":  `{"protocol":1,"name":"double","levers":["batch","save","batch"]}`,
	}[how] + map[bool]string{true: `{"protocol":1,"name":"double","levers":["batch"]}`}[how ==
		"good" || strings.HasPrefix(how, "then ")])
	if how == "then is deaf" {
		_ = syscall.Pause()
	}
	in := bufio.NewScanner(os.Stdin)
	for n := 1; in.Scan(); n++ {
		switch how {
		case "good":
			if os.Getenv("SHOAL_RANK") != "" || os.Getenv(proc.RunVariable) != "outer/run" {
				fmt.Println(`it knows of workers, or is not marked`)
			}
			if !strings.Contains(in.Text(), `"save":true},"saves":{"cost":0.5,"writing":2}`) {
				fmt.Println(`it is not told of checkpoints`)
			}
			fmt.Printf(`{"tick":%d,"change":{"batch":256,"save":7,"size":3},`+
				`"because":"asked %d times","state":%d}`+"\n", n, n, n)
		case "then dies":
			return
		case "then hangs":
			_, _ = io.Copy(io.Discard, os.Stdin) // which nobody closes
		case "then floods":
			fmt.Println(strings.Repeat("x", 1<<20))
		case "then talks nonsense":
			fmt.Println(`{"tick":1,"change":{"batch":NaN}}`)
		case "then asks for much":
			fmt.Println(`{"tick":1,"change":{"batch":-5}}`)
		case "then has another lever":
			fmt.Println(`{"tick":1,"change":{"colour":"red"}}`)
		case "then says a thing twice":
			fmt.Println(`{"tick":1,"change":null,"change":{"batch":128}}`)
		case "then raises":
			fmt.Println(`{"tick":1,"error":"ZeroDivisionError: division by zero"}`)
		case "then forgets the tick":
			fmt.Println(`{"change":{"batch":256}}`)
		case "then looks ahead":
			fmt.Println(`{"tick":99,"change":null}`)
		}
	}
}

// leaveChild is a policy that has started a process, after whose number it is called, and that ends
// when it is asked.
func leaveChild(how string) {
	child := exec.Command(os.Args[0])
	if how == "leaves a session" {
		child.Stdout, child.SysProcAttr = os.Stdout, &syscall.SysProcAttr{Setsid: true}
	}
	child.Env = []string{behaviourVariable + "=child"}
	if err := child.Start(); err != nil {
		panic(err)
	}
	fmt.Printf(`{"protocol":1,"name":"child%d","levers":["batch"]}`+"\n", child.Process.Pid)
	bufio.NewScanner(os.Stdin).Scan()
}

// startPolicy starts a policy that behaves in a way; the end of the test ends it.
func startPolicy(t *testing.T, how string) (*policies.Program, error) {
	t.Helper()
	g := group.New(context.Background())
	t.Cleanup(func() {
		g.Stop(nil)
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	})
	return policies.Start(g, []string{os.Args[0]},
		[]string{behaviourVariable + "=" + how, "SHOAL_RANK=3",
			proc.RunVariable + "=outer/run"}, policies.AnswerTime, io.Discard)
}

// observed is what the policies of these tests are told.
var observed = sense.Observation{Step: 10, Size: 2, Setting: setting.Setting{Batch: 128},
	Levers: setting.Levers{Batch: setting.Range{From: 64, To: 512}, Save: true},
	Saves:  sense.Saves{Cost: 0.5, Writing: 2, Count: 3}}

// A program is asked, keeps what it returns as its state, and decides.
func TestProgramDecides(t *testing.T) {
	p, err := startPolicy(t, "good")
	if err != nil {
		t.Fatal(err)
	}
	var state []byte
	for n := 1; n <= 3; n++ {
		var got decide.Decision
		untilAnswered(t, func() { got, state = p.Decide(observed, nil, state) })
		to := decide.Target{Setting: setting.Setting{Batch: 256, Save: 7, Size: 3}}
		want := decide.Decision{To: &to, Because: fmt.Sprintf("asked %d times", n)}
		if diff := cmp.Diff(want, got); diff != "" || string(state) != fmt.Sprint(n) {
			t.Errorf("decision %d has the state %s, and is (-want +got): %s", n, state, diff)
		}
	}
	if p.Name() != "double" || !cmp.Equal(p.Levers(), []string{"batch"}) {
		t.Errorf("it is called %s and decides about %v", p.Name(), p.Levers())
	}
}

// panicValue returns what f panics with; nil = it does not.
func panicValue(f func()) (with any) {
	defer func() { with = recover() }()
	f()
	return nil
}

// attempts is how often a test asks a program whose answers a busy machine may make late.
const attempts = 200

// untilAnswered calls f, which asks a program, until it does not panic; the test ends where it does
// attempts times.
func untilAnswered(t *testing.T, f func()) {
	t.Helper()
	var last any
	for range attempts {
		if last = panicValue(f); last == nil {
			return
		}
	}
	t.Fatalf("no answer to any of %d requests, the last: %v", attempts, last)
}

// A program that misbehaves has decided nothing, and the reason is said.
func TestProgramMisbehaves(t *testing.T) {
	for how, want := range map[string]string{
		"then dies":               "it has ended",
		"then hangs":              "has not answered within 50ms",
		"then floods":             "more than 65536 bytes",
		"then talks nonsense":     "cannot be read",
		"then asks for much":      "cannot be read",
		"then has another lever":  "unknown field",
		"then says a thing twice": `field "change" stands in it twice`,
		"then looks ahead":        "was asked request 1",
		"then forgets the tick":   "has no tick",
		"then raises":             "it failed: ZeroDivisionError",
	} {
		p, err := startPolicy(t, how)
		if err != nil {
			t.Errorf("%s: %v", how, err)
			continue
		}
		// a busy machine may make an answer late, which is what a second question then waits for
		seen := ""
		for range attempts {
			seen = fmt.Sprint(panicValue(func() { p.Decide(observed, nil, nil) }))
			if strings.Contains(seen, want) {
				break
			}
		}
		if !strings.Contains(seen, want) {
			t.Errorf("%s: %s, expected %q", how, seen, want)
		}
	}
}

// A program that is no policy does not start, and the reason is said.
func TestNoPolicyStarts(t *testing.T) {
	for how, want := range map[string]string{"newer": "protocol 9", "nameless": "its name",
		"chatty": "its first line", "painter": `no lever is called "colour"`,
		"doubler": "the lever batch twice", "painted": "can be printed"} {
		if _, err := startPolicy(t, how); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, expected one with %q", how, err, want)
		}
	}
	g := group.New(context.Background())
	_, err := policies.Start(g, []string{"/nowhere/policy"}, nil, policies.AnswerTime,
		io.Discard)
	if err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("a file that is not there: %v", err)
	}
	g.Stop(nil)
	_ = g.Wait()
}

// What is wrong with the first line of a script is said.
func TestScriptsWithoutInterpreterAreExplained(t *testing.T) {
	g := group.New(context.Background())
	for text, want := range map[string]string{"echo hello\n": "such as #!/bin/sh",
		"#!/bin/sh\r\necho hello\n": "the file is there", "#!/nowhere/sh\n": "the file is there"} {
		path := filepath.Join(t.TempDir(), "policy")
		if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
		_, err := policies.Start(g, []string{path}, nil, policies.AnswerTime, io.Discard)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, expected %q", text, err, want)
		}
	}
	g.Stop(nil)
	_ = g.Wait()
}

// A program that does not read its requests holds nobody up, and is ended.
func TestDeafProgramIsEnded(t *testing.T) {
	p, err := startPolicy(t, "then is deaf")
	if err != nil {
		t.Fatal(err)
	}
	// more than a pipe has room for, and little enough for a request to be made within the time of
	// an answer, also under the race detector
	more := []byte(`"` + strings.Repeat("x", 128<<10) + `"`)
	for _, want := range []string{"does not read", "it has ended"} {
		seen := ""
		for range attempts {
			seen = fmt.Sprint(panicValue(func() { p.Decide(observed, nil, more) }))
			if !strings.Contains(seen, "could not be asked") { // a busy machine may not come to it
				break
			}
		}
		if !strings.Contains(seen, want) {
			t.Errorf("%s, expected %q", seen, want)
		}
	}
}

// What a program has started that ends by itself ends with it.
func TestNoChildOfProgramStays(t *testing.T) {
	for range 5 { // what is wrong here may go well by chance
		p, err := startPolicy(t, "leaves a child")
		if err != nil {
			t.Fatal(err)
		}
		pid := childOf(t, p)
		fd, err := unix.PidfdOpen(pid, 0)
		if errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, 10_000)
		for err == unix.EINTR {
			n, err = unix.Poll(fds, 10_000)
		}
		if n != 1 {
			t.Errorf("process %d, which the program has started, lives on: %v", pid, err)
			_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		}
		unix.Close(fd)
	}
}

// A process that a program has started in a session of its own, which a sweep of the run finds,
// does not hold up the end of the group, though it has the output of the program open. Nor is that
// said not to answer.
func TestSessionOfProgramHoldsNobodyUp(t *testing.T) {
	pid := 0
	t.Cleanup(func() {
		if pid > 0 {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	p, err := startPolicy(t, "leaves a session") // whose cleanup comes first, and waits
	if err != nil {
		t.Fatal(err)
	}
	pid = childOf(t, p)
	seen := ""
	for range attempts {
		seen = fmt.Sprint(panicValue(func() { p.Decide(observed, nil, nil) }))
		if strings.Contains(seen, "it has ended") {
			return
		}
	}
	t.Errorf("%s, expected that it has ended", seen)
}

// childOf has a program end which leaveChild is, and returns the number of the process that it has
// started.
func childOf(t *testing.T, p *policies.Program) int {
	t.Helper()
	_ = panicValue(func() { p.Decide(observed, nil, nil) })
	pid, err := strconv.Atoi(strings.TrimPrefix(p.Name(), "child"))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// The end of the group ends a program that hears nothing, with all that it has started.
func TestGroupEndsProgram(t *testing.T) {
	p, err := startPolicy(t, "then hangs")
	if err != nil {
		t.Fatal(err)
	}
	_ = panicValue(func() { p.Decide(observed, nil, nil) })
	// the cleanup of start waits for the program
}

// A file of Python is run by the interpreter, and any other by itself.
func TestCommand(t *testing.T) {
	for path, want := range map[string]string{"/x/mine": "/x/mine", "mine": "./mine",
		"mine.py": "py -m shoal._policy_program serve mine.py"} {
		if got := strings.Join(policies.Command(path, "py"), " "); got != want {
			t.Errorf("%s is run by %q, expected %q", path, got, want)
		}
	}
}
