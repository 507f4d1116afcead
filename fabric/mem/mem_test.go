package mem

import (
	"errors"
	"testing"

	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/fabric/fabrictest"
)

// cluster is a Hub as fabrictest.Cluster.
type cluster struct{ *Hub }

// Add implements fabrictest.Cluster; it does not fail.
func (c cluster) Add(_ testing.TB, name fabric.Host, h fabric.Handler) fabric.Network {
	return c.Hub.Add(name, h)
}

// Kill implements fabrictest.Cluster: what m had queued is lost.
func (c cluster) Kill(m fabric.Network) { c.Hub.Kill(m.Self()) }

// TestSuite: this network does what every network must do.
func TestSuite(t *testing.T) {
	fabrictest.Run(t, func(*testing.T) fabrictest.Cluster { return cluster{NewHub()} })
}

// TestCut: hosts whose link is cut are told of silence, and keep their other links.
func TestCut(t *testing.T) {
	n := NewHub()
	hosts := map[fabric.Host]*fabrictest.Recorder{}
	networks := map[fabric.Host]*Network{}
	for _, name := range []fabric.Host{"a", "b", "c"} {
		hosts[name] = fabrictest.NewRecorder(t)
		networks[name] = n.Add(name, hosts[name])
	}
	n.Cut("a", "b")
	for _, pair := range [][2]fabric.Host{{"a", "b"}, {"b", "a"}} {
		if why := hosts[pair[0]].WaitDown(pair[1]); !errors.Is(why, fabric.ErrSilent) {
			t.Errorf("%s lost %s with %v", pair[0], pair[1], why)
		}
	}
	networks["a"].Send("c", []byte("x"))
	networks["b"].Send("c", []byte("y"))
	hosts["c"].WaitMessages("a", 1)
	hosts["c"].WaitMessages("b", 1)
	for _, m := range networks {
		m.Close()
	}
}
