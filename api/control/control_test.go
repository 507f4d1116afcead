package control

import (
	"encoding/json"
	"strings"
	"testing"
)

// An object with a name of protocol 1 is refused with the name that took its place.
func TestRetiredNamesAreRefused(t *testing.T) {
	for object, want := range map[string]string{
		`{"job":"train","back":"to step 8"}`:        `"last_rollback"`,
		`{"job":"train","asked":"train"}`:           `"requested_name"`,
		`{"job":"train","no_room":2}`:               `"unplaced"`,
		`{"alone":0,"workers":4}`:                   `"unreplicated"`,
		`{"workers":[{"worker":0,"how":"exited"}]}`: `"ended"`,
		`{"workers":[{"worker":0,"waited":{}}]}`:    `"awaited"`,
	} {
		if err := CheckNames([]byte(object)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want the new name %s", object, err, want)
		}
	}
}

// No field of this protocol has a retired name.
func TestNamesOfThisProtocolAreAccepted(t *testing.T) {
	seconds := 1.5
	for _, v := range []any{
		Job{RequestedName: "x", MeshStatus: MeshStatus{Mesh: "x", NextMesh: "x", MeshError: "x",
			RollbackReason: "x", LastRollback: "x"},
			Unplaced: 1, StoppedBy: "x", Hosts: []string{"x"}, Join: "x",
			Workers: []Worker{{Waiting: true, Ended: "x", Failed: true,
				Awaited: &Wait{OwnCall: "x", Group: 1, Absent: true, Unusual: true}}}},
		Plan{LinkSeconds: &seconds},
	} {
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if err := CheckNames(text); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}
