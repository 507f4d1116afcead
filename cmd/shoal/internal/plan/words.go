package plan

import (
	"fmt"
	"strings"

	"github.com/shoal-ml/shoal/decide/planner"
)

// What shoal plan says of a plan, in words. The functions are pure.

// helpText writes what would let more samples through, and by how much.
func helpText(list []planner.Help) string {
	parts := make([]string, len(list))
	for i, h := range list {
		parts[i] = fmt.Sprintf("%+.1f %% with %s", 100*h.Gain, h.What)
	}
	return strings.Join(parts, ", ") + " (samples/s)"
}

// memoryText writes what takes the memory of a worker of a stage, after ": "; "" where that is not
// known.
func memoryText(list []planner.Memory, stage int) string {
	if stage >= len(list) {
		return ""
	}
	m := list[stage]
	return ": " + m.String()
}
