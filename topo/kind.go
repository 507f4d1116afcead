package topo

import (
	"fmt"
	"strings"
)

// MaxKind is how many bytes the name of a kind of host has at most.
const MaxKind = 64

// CheckKind fails for a text that cannot name a kind of host, such as a100 or cpu: the kind of the
// devices that its workers compute on.
func CheckKind(name string) error {
	if name == "" || len(name) > MaxKind || strings.ContainsFunc(name, isOutsideKind) {
		return fmt.Errorf("%q names no kind of host: that is up to %d letters, digits, and . _ -",
			name, MaxKind)
	}
	return nil
}

// KindOf turns the name that a device has for people into the name of a kind of host: each run of
// what such a name cannot have becomes a hyphen, as in NVIDIA-H100-80GB-HBM3. What goes beyond
// MaxKind bytes is cut off; "" = no letter of the name can stand in one.
func KindOf(device string) string {
	name := strings.Join(strings.FieldsFunc(device, isOutsideKind), "-")
	return name[:min(len(name), MaxKind)]
}

// isOutsideKind reports whether the name of a kind cannot have a letter.
func isOutsideKind(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') &&
		!strings.ContainsRune("._-", r)
}
