package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/internal/cli"
)

// addSecondInterfaces gives each host another interface, eth1, on a switch of its own. It is called
// once, by the goroutine of the test; a failure ends the test.
func (n *network) addSecondInterfaces() {
	n.addSwitch("switch1")
	for _, host := range n.hosts {
		n.connect(host, "eth1", strings.Replace(n.address(host), "10.77.", "10.78.", 1), host+"1",
			"switch1")
	}
}

// sentBytes returns how many bytes have left a host by a device since that exists. A failure ends
// the test, whose goroutine calls it.
func (n *network) sentBytes(host, device string) int {
	n.tb.Helper()
	text, err := n.hostCommand(context.Background(), host, "cat",
		"/sys/class/net/"+device+"/statistics/tx_bytes").Output()
	n.must(err)
	bytes, err := strconv.Atoi(strings.TrimSpace(string(text)))
	n.must(err)
	return bytes
}

// tuning is a measurement between two hosts, which find each other's interfaces. The test waits for
// both programs before it reads what they have printed.
type tuning struct {
	ctx          context.Context // kills both programs when it ends
	first, other *exec.Cmd       // on the hosts a and b
	out, notes   strings.Builder // results and messages of the first
	said         strings.Builder // messages of the other
}

// benchProgram builds a program of folder bench and returns its path; it is removed with the test.
// A failure ends the test.
func benchProgram(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	text, err := exec.Command("go", "build", "-o", path, "../../bench/"+name).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return path
}

// startTuning starts a measurement with bench/tune on the hosts a and b. It returns when both run;
// words are further flags of the first. A failure ends the test, and after testPatience they are
// killed.
func startTuning(t *testing.T, n *network, words ...string) *tuning {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testPatience)
	t.Cleanup(cancel)
	token := filepath.Join(t.TempDir(), "token")
	tune := []string{benchProgram(t, "tune"), "--token-file", token}
	u := &tuning{
		ctx: ctx,
		first: n.hostCommand(ctx, "a",
			slices.Concat(tune, []string{"--hosts", "2", "--listen", ":7077", "--json"}, words)...),
		other: n.hostCommand(ctx, "b", append(tune, "--join", n.address("a")+":7077")...),
	}
	u.first.Stdout, u.first.Stderr, u.other.Stderr = &u.out, &u.notes, &u.said
	n.must(u.first.Start())
	n.must(cli.Poll(ctx, func() (bool, error) { _, err := os.Stat(token); return err == nil, nil }))
	n.must(u.other.Start())
	return u
}

// Hosts with two interfaces each find both, with nothing said about them: what goes on all streams
// of a link goes over both interfaces, and the rest over the first.
func TestTensorsGoOverAllInterfaces(t *testing.T) {
	const runs = 1
	n := newNetwork(t, "a", "b")
	n.addSecondInterfaces()
	for _, host := range n.hosts {
		n.limitCable(host, "500mbit", "1mb")
		n.limitRate(n.namespace(host), "eth1", "500mbit", "1mb")
		n.limitRate(n.name, host+"1", "500mbit", "1mb")
	}
	u := startTuning(t, n, "--bytes", "4MiB", "--runs", strconv.Itoa(runs))
	if err := errors.Join(u.first.Wait(), u.other.Wait()); err != nil {
		t.Fatalf("%v: %s%s", err, u.notes.String(), u.said.String())
	}
	wide := (1 + runs) * 8 << 20 // a probe
	for d := json.NewDecoder(strings.NewReader(u.out.String())); d.More(); {
		var l struct {
			Bytes int64            `json:"bytes"`
			Route collective.Route `json:"route"`
		}
		n.must(d.Decode(&l))
		if l.Route.Streams > 1 {
			wide += (1 + runs) * int(l.Bytes)
		}
	}
	for _, host := range n.hosts {
		first, second := n.sentBytes(host, "eth0"), n.sentBytes(host, "eth1")
		t.Logf("%s: %d bytes may go on all streams; %d went over the first interface and %d "+
			"over the "+
			"second", host, wide, first, second)
		if second < wide/4 || second > wide*3/4 || first < wide/4 {
			t.Errorf("%s did not spread over both interfaces", host)
		}
	}
}

// A second interface dies while the first one lives: nobody waits for what is on its way there for
// ever.
func TestSecondInterfaceDies(t *testing.T) {
	n := newNetwork(t, "a", "b")
	n.addSecondInterfaces()
	u := startTuning(t, n, "--bytes", "16MiB", "--runs", "50")
	n.must(cli.Poll(u.ctx, func() (bool, error) { return n.sentBytes("a", "eth1") >= 1<<20, nil }))
	n.must(runIP("-n", n.name, "link", "set", "dev", "a1", "down"))
	if errors.Join(u.first.Wait(), u.other.Wait()) == nil {
		t.Error("it was measured to the end")
	}
	if said := u.notes.String() + u.said.String(); !strings.Contains(said, "network interface") {
		t.Errorf("it ended with %s", said)
	}
}
