package tcp

import (
	"net"
	"slices"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/fabric/accrual"
)

// newNIC returns an interface that has addresses such as 10.0.0.1/24; number 1 is the loopback. An
// address that is none fails the test.
func newNIC(t *testing.T, index int, addresses ...string) nic {
	t.Helper()
	c := nic{index: index, loopback: index == 1}
	for _, a := range addresses {
		ip, n, err := net.ParseCIDR(a)
		if err != nil {
			t.Fatal(err)
		}
		c.networks = append(c.networks, &net.IPNet{IP: ip, Mask: n.Mask})
	}
	return c
}

// An agent offers an address of each interface but the one that it is reached at, and not more than
// there are streams.
func TestAddressesToOffer(t *testing.T) {
	interfaces := []nic{
		newNIC(t, 1, "127.0.0.1/8"),
		newNIC(t, 2, "fe80::1/64", "10.0.0.1/24"),
		newNIC(t, 3, "fe80::2/64", "2001:db8::1/64", "10.0.1.1/24"),
		newNIC(t, 4, "2001:db8:1::1/64"),
		newNIC(t, 5, "fe80::3/64"),
		newNIC(t, 6),
	}
	for at, want := range map[string][]string{
		"10.0.0.1":  {"10.0.1.1:7077", "[2001:db8:1::1]:7077"},
		"10.0.1.1":  {"10.0.0.1:7077", "[2001:db8:1::1]:7077"},
		"127.0.0.1": {"10.0.0.1:7077", "10.0.1.1:7077", "[2001:db8:1::1]:7077"},
	} {
		if got := addressesToOffer(interfaces, net.ParseIP(at), 7077); !slices.Equal(got, want) {
			t.Errorf("beside %s: %q, want %q", at, got, want)
		}
	}
	for i := range 5 {
		interfaces = append(interfaces, newNIC(t, 7+i, net.IPv4(10, 1, byte(i), 1).String()+"/24"))
	}
	if got := addressesToOffer(interfaces, net.ParseIP("10.0.0.1"), 7077); len(got) != 3 {
		t.Errorf("%d interfaces are offered beside the first: %q", len(got), got)
	}
}

// Of the addresses that another agent offers those count that another interface of this host
// reaches by itself.
func TestReachableAddresses(t *testing.T) {
	own := []nic{
		newNIC(t, 1, "127.0.0.1/8"),
		newNIC(t, 2, "10.0.0.1/24", "10.0.9.1/24"),
		newNIC(t, 3, "10.0.1.1/24", "2001:db8::1/64"),
		newNIC(t, 4, "10.0.2.1/24"),
		newNIC(t, 5, "172.17.0.1/16"),
	}
	for _, c := range []struct {
		name           string
		at             string
		offered, reach []string
	}{
		{"two more", "10.0.0.1", []string{"10.0.1.2:1", "10.0.2.2:1"},
			[]string{"10.0.1.2:1", "10.0.2.2:1"}},
		{"one, twice", "10.0.0.1", []string{"10.0.1.2:1", "[2001:db8::2]:1"},
			[]string{"10.0.1.2:1"}},
		{"by the interface that control goes over", "10.0.0.1", []string{"10.0.9.2:1"}, nil},
		{"which is another one", "10.0.1.1", []string{"10.0.9.2:1"}, []string{"10.0.9.2:1"}},
		{"behind a router", "10.0.0.1", []string{"10.0.3.2:1"}, nil},
		{"of containers here and there", "10.0.0.1", []string{"172.17.0.1:1"}, nil},
		{"on the loopback", "10.0.0.1", []string{"127.0.0.2:1"}, nil},
		{"what is none", "10.0.0.1", []string{"", "here", "10.0.1.2", "host:1", "10.0.1.2:1"},
			[]string{"10.0.1.2:1"}},
	} {
		if got := reachableAddresses(own, net.ParseIP(c.at), c.offered); !slices.Equal(got,
			c.reach) {
			t.Errorf("%s: %q, want %q", c.name, got, c.reach)
		}
	}
}

// An interface that acknowledges nothing of what has left is dead; one that is idle is not, nor one
// that answers now and then.
func TestDeadInterfaces(t *testing.T) {
	now, owed := time.Duration(0), time.Duration(0)
	a := &otherPath{accrual.New(patience*beatInterval, 0), func() time.Duration { return owed }}
	run := func(upTo time.Duration, next func()) (died bool) {
		for ; now < upTo; now += tick {
			next()
			died = a.judgeOwedAcks(now, tick) || died
		}
		return died
	}
	if run(time.Minute, func() { owed = 0 }) {
		t.Error("idle, it is taken for dead")
	}
	if run(2*time.Minute, func() { owed = (owed + tick) % (400 * time.Millisecond) }) {
		t.Error("it acknowledges what it gets after a while, and is taken for dead")
	}
	if a.judgeOwedAcks(now+time.Minute, time.Minute) {
		t.Error("this process stood still, and that is held against the interface")
	}
	now += time.Minute
	if !run(now+5*time.Second, func() { owed += tick }) {
		t.Error("alive after five seconds in which it acknowledged nothing")
	}
}
