package control

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// Names of an older protocol, which readers of JSON must not take for fields that are absent. The
// function is pure: clients call it with what a launcher has sent.

// retired maps the names of protocol 1 to the names that took their place.
var retired = map[string]string{
	"alone":       "unreplicated",
	"asked":       "requested_name",
	"back":        "last_rollback",
	"broken":      "mesh_error",
	"by":          "waiters",
	"how":         "ended",
	"lost":        "rollback_reason",
	"no_room":     "unplaced",
	"other_alone": "other_unreplicated",
	"own":         "own_call",
	"reshaping":   "next_mesh",
	"waited":      "awaited",
}

// CheckNames returns an error for an object of protocol 1: it names a field that has another name
// now. It looks at the object itself and at its workers.
func CheckNames(object []byte) error {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(object, &fields); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if now, is := retired[name]; is {
			return fmt.Errorf("%q is a name of protocol 1; it is called %q since protocol %d", name,
				now, Protocol)
		}
	}
	var workers []json.RawMessage
	if json.Unmarshal(fields["workers"], &workers) != nil {
		return nil // a plan has a number there
	}
	for _, w := range workers {
		if err := CheckNames(w); err != nil {
			return err
		}
	}
	return nil
}
