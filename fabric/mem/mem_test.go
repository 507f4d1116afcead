package mem

import (
	"errors"
	"testing"

	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/fabric/fabrictest"
)

type cluster struct{ *Network }

func (c cluster) Add(_ testing.TB, name fabric.Host, h fabric.Handler) fabric.Mesh {
	return c.Mesh(name, h)
}
func (c cluster) Kill(m fabric.Mesh) { c.Network.Kill(m.Self()) }

func TestSuite(t *testing.T) {
	fabrictest.Run(t, func(*testing.T) fabrictest.Cluster { return cluster{NewNetwork()} })
}

func TestCut(t *testing.T) {
	n := NewNetwork()
	hosts := map[fabric.Host]*fabrictest.Recorder{}
	meshes := map[fabric.Host]*Mesh{}
	for _, name := range []fabric.Host{"a", "b", "c"} {
		hosts[name] = fabrictest.NewRecorder(t)
		meshes[name] = n.Mesh(name, hosts[name])
	}
	n.Cut("a", "b")
	for _, pair := range [][2]fabric.Host{{"a", "b"}, {"b", "a"}} {
		if why := hosts[pair[0]].WaitDown(pair[1]); !errors.Is(why, fabric.ErrSilent) {
			t.Errorf("%s lost %s with %v", pair[0], pair[1], why)
		}
	}
	meshes["a"].Send("c", []byte("x"))
	meshes["b"].Send("c", []byte("y"))
	hosts["c"].WaitMessages("a", 1)
	hosts["c"].WaitMessages("b", 1)
	for _, m := range meshes {
		m.Close()
	}
}
