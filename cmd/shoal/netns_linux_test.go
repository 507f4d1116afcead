package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
)

// network is hosts on a switch: each a network namespace with one cable. The hosts share everything
// but the network. The goroutine of the test uses it; its methods run ip or tc and wait for them,
// and what fails ends the test.
type network struct {
	tb    testing.TB
	name  string   // of the namespace of the switch, and the begin of the others'
	hosts []string // names, in the order of their addresses
}

// networks is how many networks this process has made.
var networks atomic.Int32

// newNetwork makes hosts on a switch until the test ends; it skips the test where that is not
// allowed.
func newNetwork(tb testing.TB, hosts ...string) *network {
	tb.Helper()
	n := &network{tb: tb, name: fmt.Sprintf("shoal%dn%d", os.Getpid(), networks.Add(1))}
	if err := runIP("netns", "add", n.name); err != nil {
		tb.Skipf("hosts of their own need root and network namespaces (ip of iproute2): %v", err)
	}
	tb.Cleanup(func() { n.deleteNamespace(n.name) })
	n.addSwitch("switch")
	for _, host := range hosts {
		n.hosts = append(n.hosts, host)
		space := n.namespace(host)
		n.must(runIP("netns", "add", space))
		tb.Cleanup(func() { n.deleteNamespace(space) })
		n.must(runIP("-n", space, "link", "set", "lo", "up"))
		n.connect(host, "eth0", n.address(host), host, "switch")
	}
	return n
}

// addSwitch makes a switch with this name in the namespace of the network, which ends with that.
func (n *network) addSwitch(name string) {
	n.must(runIP("-n", n.name, "link", "add", name, "type", "bridge"))
	n.must(runIP("-n", n.name, "link", "set", name, "up"))
}

// connect gives a host an interface with an address, and a cable from it to a port of a switch.
func (n *network) connect(host, device, address, port, to string) {
	space := n.namespace(host)
	n.must(runIP("-n", n.name, "link", "add", "name", port, "type", "veth", "peer", "name", device,
		"netns", space))
	n.must(runIP("-n", n.name, "link", "set", "dev", port, "master", to, "up"))
	n.must(runIP("-n", space, "address", "add", address+"/24", "dev", device))
	n.must(runIP("-n", space, "link", "set", device, "up"))
}

// namespace returns the name of the network namespace of a host.
func (n *network) namespace(host string) string { return n.name + host }

// address returns the address at which the others reach a host.
func (n *network) address(host string) string {
	for i, h := range n.hosts {
		if h == host {
			return fmt.Sprintf("10.77.0.%d", i+1)
		}
	}
	n.tb.Fatalf("no host %s", host)
	return ""
}

// hostCommand returns a command that runs on a host, not started yet; the end of ctx kills it. Its
// process is the command itself: ip netns exec makes no other.
func (n *network) hostCommand(ctx context.Context, host string, words ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "ip",
		append([]string{"netns", "exec", n.namespace(host)}, words...)...)
}

// cutCable takes the cable of a host out of the switch: nothing comes through, and nobody is told.
func (n *network) cutCable(host string) {
	n.must(runIP("-n", n.name, "link", "set", "dev", host, "down"))
}

// mendCable connects the cable again. Until then the host has found out that nobody answers, which
// it is to forget.
func (n *network) mendCable(host string) {
	n.must(runIP("-n", n.name, "link", "set", "dev", host, "up"))
	for _, other := range n.hosts {
		n.must(runIP("-n", n.namespace(other), "neighbour", "flush", "all"))
	}
}

// separate has two hosts reach everybody but each other: they send to an interface that nobody has.
func (n *network) separate(a, b string) {
	for _, pair := range [][2]string{{a, b}, {b, a}} {
		n.must(runIP("-n", n.namespace(pair[0]), "neighbour", "replace", n.address(pair[1]),
			"lladdr",
			"02:00:00:00:00:fe", "dev", "eth0", "nud", "permanent"))
	}
}

// limitCable makes the cable of a host slow, both ways, with a queue of so many bytes. rate and
// queue are as tc takes them, such as 10mbit and 500kb.
func (n *network) limitCable(host, rate, queue string) {
	for space, device := range map[string]string{n.name: host, n.namespace(host): "eth0"} {
		n.limitRate(space, device, rate, queue)
	}
}

// limitRate limits what leaves by a device of a namespace, in the units of limitCable.
func (n *network) limitRate(space, device, rate, queue string) {
	n.must(runTool("tc", "-n", space, "qdisc", "replace", "dev", device, "root", "tbf", "rate",
		rate,
		"burst", "16kb", "limit", queue))
}

// deleteNamespace removes a network namespace; where it cannot, it fails the test, which goes on.
func (n *network) deleteNamespace(space string) {
	if err := runIP("netns", "delete", space); err != nil {
		n.tb.Error(err)
	}
}

// must ends the test if err is not nil.
func (n *network) must(err error) {
	n.tb.Helper()
	if err != nil {
		n.tb.Fatal(err)
	}
}

// runIP runs ip of iproute2, waits for it, and returns its error with the output.
func runIP(words ...string) error { return runTool("ip", words...) }

// runTool runs a program and waits for it; its error has the output.
func runTool(name string, words ...string) error {
	out, err := exec.Command(name, words...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w", name, strings.Join(words, " "),
			errors.Join(err, errors.New(strings.TrimSpace(string(out)))))
	}
	return nil
}
