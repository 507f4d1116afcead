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
// but the network.
type network struct {
	tb    testing.TB
	name  string // of the namespace of the switch, and the begin of the others'
	hosts []string
}

var networks atomic.Int32 // made by this process

// newNetwork connects hosts, or skips the test where nobody may do that.
func newNetwork(tb testing.TB, hosts ...string) *network {
	tb.Helper()
	n := &network{tb: tb, name: fmt.Sprintf("shoal%dn%d", os.Getpid(), networks.Add(1))}
	if err := ip("netns", "add", n.name); err != nil {
		tb.Skipf("hosts of their own need root and network namespaces (ip of iproute2): %v", err)
	}
	tb.Cleanup(func() { n.delete(n.name) })
	n.addSwitch("switch")
	for _, host := range hosts {
		n.hosts = append(n.hosts, host)
		space := n.space(host)
		n.must(ip("netns", "add", space))
		tb.Cleanup(func() { n.delete(space) })
		n.must(ip("-n", space, "link", "set", "lo", "up"))
		n.plug(host, "eth0", n.address(host), host, "switch")
	}
	return n
}

func (n *network) addSwitch(name string) {
	n.must(ip("-n", n.name, "link", "add", name, "type", "bridge"))
	n.must(ip("-n", n.name, "link", "set", name, "up"))
}

// plug gives a host a card, with a cable to a port of a switch.
func (n *network) plug(host, card, address, port, to string) {
	space := n.space(host)
	n.must(ip("-n", n.name, "link", "add", "name", port, "type", "veth", "peer", "name", card,
		"netns", space))
	n.must(ip("-n", n.name, "link", "set", "dev", port, "master", to, "up"))
	n.must(ip("-n", space, "address", "add", address+"/24", "dev", card))
	n.must(ip("-n", space, "link", "set", card, "up"))
}

func (n *network) space(host string) string { return n.name + host }

// address is how the others reach a host.
func (n *network) address(host string) string {
	for i, h := range n.hosts {
		if h == host {
			return fmt.Sprintf("10.77.0.%d", i+1)
		}
	}
	n.tb.Fatalf("no host %s", host)
	return ""
}

// command runs on a host. Its process is the command itself: ip netns exec makes no other.
func (n *network) command(ctx context.Context, host string, words ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "ip",
		append([]string{"netns", "exec", n.space(host)}, words...)...)
}

// cut pulls the cable of a host out of the switch: nothing comes through, and nobody is told.
func (n *network) cut(host string) { n.must(ip("-n", n.name, "link", "set", "dev", host, "down")) }

// mend plugs it in again. Until then the host has found out that nobody answers, which it is to
// forget.
func (n *network) mend(host string) {
	n.must(ip("-n", n.name, "link", "set", "dev", host, "up"))
	for _, other := range n.hosts {
		n.must(ip("-n", n.space(other), "neighbour", "flush", "all"))
	}
}

// part lets two hosts reach everybody but each other: they send to a card that nobody has.
func (n *network) part(a, b string) {
	for _, pair := range [][2]string{{a, b}, {b, a}} {
		n.must(ip("-n", n.space(pair[0]), "neighbour", "replace", n.address(pair[1]), "lladdr",
			"02:00:00:00:00:fe", "dev", "eth0", "nud", "permanent"))
	}
}

// limit makes the cable of a host slow, both ways, with a queue of so many bytes.
func (n *network) limit(host, rate, queue string) {
	for space, device := range map[string]string{n.name: host, n.space(host): "eth0"} {
		n.slow(space, device, rate, queue)
	}
}

// slow limits what leaves by a device of a namespace.
func (n *network) slow(space, device, rate, queue string) {
	n.must(tool("tc", "-n", space, "qdisc", "replace", "dev", device, "root", "tbf", "rate", rate,
		"burst", "16kb", "limit", queue))
}

func (n *network) delete(space string) {
	if err := ip("netns", "delete", space); err != nil {
		n.tb.Error(err)
	}
}

func (n *network) must(err error) {
	n.tb.Helper()
	if err != nil {
		n.tb.Fatal(err)
	}
}

func ip(words ...string) error { return tool("ip", words...) }

func tool(name string, words ...string) error {
	out, err := exec.Command(name, words...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w", name, strings.Join(words, " "),
			errors.Join(err, errors.New(strings.TrimSpace(string(out)))))
	}
	return nil
}
