package decide

import "testing"

// TestActs has a pod be missing that was there, as in a cache that is late, while others are made
// only later: that another takes its place is no mere note, so all pods are read anew before.
func TestActs(t *testing.T) {
	v := View{Replicas: 2, Now: 1000, State: State{Phase: Running, Run: 1, Begun: true, Next: 2,
		Members: []Member{{0, true}, {1, true}}, Crashes: 2, LastCrash: 1000}}
	v.Pods = parse(t, "1.0:r")
	if d := Next(v); len(d.Gone) != 1 || !d.Acts(v.State) {
		t.Errorf("a member is replaced: %+v", d)
	}
	v.Pods = parse(t, "1.0:r 1.1:r")
	if d := Next(v); d.Acts(v.State) {
		t.Errorf("nothing happens: %+v", d)
	}
}
