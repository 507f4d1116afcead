package nats

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/shoal-ml/shoal/store"
)

// TestCluster: three servers have three replicas, and one of them may be lost.
func TestCluster(t *testing.T) {
	ports := freePorts(t, 3)
	var routes []*url.URL
	for _, p := range ports {
		routes = append(routes, &url.URL{Scheme: "nats", Host: fmt.Sprintf("127.0.0.1:%d", p)})
	}
	var servers []*elsewhere
	var addresses []string
	for i := range 3 {
		e := startElsewhere(t, func(o *server.Options) {
			o.ServerName = fmt.Sprintf("server%d", i)
			o.Cluster = server.ClusterOpts{Name: "three", Host: "127.0.0.1", Port: ports[i]}
			o.Routes = routes
		})
		servers, addresses = append(servers, e), append(addresses, e.servers.URL)
	}
	var s store.Store
	err := store.ErrUnavailable
	for errors.Is(err, store.ErrUnavailable) { // until they have chosen a leader
		s, err = Connect(t.Context(), Servers{URL: strings.Join(addresses, ",")})
	}
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if n := s.(*external).session.stream.CachedInfo().Config.Replicas; n != 3 {
		t.Fatalf("%d replicas", n)
	}
	kept := map[string]store.Revision{}
	write := func(key string) {
		t.Helper()
		err := store.ErrUnavailable
		var r store.Revision
		for errors.Is(err, store.ErrUnavailable) {
			r, err = s.Create(t.Context(), key, []byte(key))
		}
		if err != nil && !errors.Is(err, store.ErrExists) { // it exists when the answer was lost
			t.Fatal(err)
		}
		kept[key] = r
	}
	for i := range 5 {
		write(fmt.Sprintf("before.%d", i))
	}
	_, err = s.Create(t.Context(), "before.0", nil)
	if !errors.Is(err, store.ErrExists) {
		t.Errorf("create again: %v", err)
	}
	if _, err = s.Update(t.Context(), "before.0", nil, kept["before.1"]); !errors.Is(err,
		store.ErrConflict) {
		t.Errorf("update of another revision: %v", err)
	}
	servers[0].Stop(t)
	for i := range 5 {
		write(fmt.Sprintf("after.%d", i))
	}
	for key := range kept {
		e, err := s.Get(t.Context(), key)
		for errors.Is(err, store.ErrUnavailable) {
			e, err = s.Get(t.Context(), key)
		}
		if err != nil || string(e.Value) != key {
			t.Errorf("%s holds %q (%v)", key, e.Value, err)
		}
	}
}

// freePorts returns n ports of the loopback on which nobody listened a moment ago. A failure ends
// the test.
func freePorts(t *testing.T, n int) (ports []int) {
	t.Helper()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports
}
