package record

import (
	"fmt"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/internal/keyword"
	"github.com/shoal-ml/shoal/topo"
)

// The keys under which the record of a job lies in a store. The functions are pure.

// Limits that are the same for all stores.
const (
	MaxKey   = 2048      // bytes of a key
	MaxValue = 512 << 10 // bytes of a value
)

// CheckKey fails for a text that is not a key: words of letters, digits, "-", "_" and "=", joined
// by dots.
func CheckKey(key string) error {
	if key == "" || len(key) > MaxKey {
		return fmt.Errorf("a key of %d bytes: it has 1 to %d", len(key), MaxKey)
	}
	for word := range strings.SplitSeq(key, ".") {
		if word == "" || strings.TrimLeft(word, keyword.Plain+"=") != "" {
			return fmt.Errorf("the key %q: it consists of words of letters, digits, «-», «_» "+
				"and «=», joined by dots", key)
		}
	}
	return nil
}

// CheckEntry fails for a key or a value that cannot be written: stores begin Create and Update with
// it.
func CheckEntry(key string, value []byte) error {
	if len(value) > MaxValue {
		return fmt.Errorf("a value of %d bytes for the key %s: at most %d are kept", len(value),
			key, MaxValue)
	}
	return CheckKey(key)
}

// OwnerKey returns the key under which the owner of a job is kept.
func OwnerKey(job string) string { return "owner." + keyword.Of(job) }

// GenerationPrefix returns the words with which the keys of the generations of a run begin.
func GenerationPrefix(job, run string) string {
	return "generation." + keyword.Of(job) + "." + keyword.Of(run)
}

// GenerationKey returns the key under which a generation is kept. It has the number in twenty
// digits, so that keys sort as generations do.
func GenerationKey(job, run string, g topo.Generation) string {
	return fmt.Sprintf("%s.%020d", GenerationPrefix(job, run), g)
}

// ParseGenerations returns the generations whose keys these are, in ascending order. It fails for a
// key that is not one of the run's.
func ParseGenerations(job, run string, keys []string) ([]topo.Generation, error) {
	all := make([]topo.Generation, 0, len(keys))
	for _, key := range keys {
		var g topo.Generation
		rest, below := strings.CutPrefix(key, GenerationPrefix(job, run))
		if _, err := fmt.Sscanf(rest, ".%d", &g); err != nil || !below ||
			GenerationKey(job, run, g) != key {
			return nil, fmt.Errorf("the store holds the key %s, which is no generation: delete it",
				key)
		}
		all = append(all, g)
	}
	slices.Sort(all)
	return all, nil
}
