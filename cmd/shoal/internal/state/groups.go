package state

import (
	"fmt"
	"slices"

	"github.com/shoal-ml/shoal/checkpoint"
	"github.com/shoal-ml/shoal/format/optim"
	"github.com/shoal-ml/shoal/internal/durable"
	"github.com/shoal-ml/shoal/state/layout"
)

// What the formats of DeepSpeed need of the flags. One goroutine runs it, that of the command.

// prepareOptimizer changes the tensors of the optimizer in c to what the format needs, with the
// groups of the file of --groups, if that is given. notes tell the user what was inferred. It reads
// that file.
func (m *moveFlags) prepareOptimizer(c *checkpoint.Checkpoint) (notes []string, err error) {
	var given []optim.Group
	if m.groups != "" {
		text, err := durable.Read(m.groups, optim.MaxGroupsBytes)
		if err != nil {
			return nil, err
		}
		if given, err = optim.ParseGroups(text); err != nil {
			return nil, fmt.Errorf("%s: %w", m.groups, err)
		}
	}
	return c.PrepareOptimizer(m.format, given)
}

// removeModelAxes removes the axes tp, pp and ep from l.mesh and returns their sizes, 0 for one
// that is missing: the ranks of ZeRO share parameters as the checkpoint says, not as a layout does.
func (l *layoutFlags) removeModelAxes() (tp, pp, ep int, err error) {
	m, err := layout.ParseMesh(l.mesh)
	if l.mesh == "" || err != nil {
		return 0, 0, 0, err
	}
	m = slices.DeleteFunc(m, func(a layout.Axis) bool {
		switch a.Name {
		case "tp":
			tp = a.Size
		case "pp":
			pp = a.Size
		case "ep":
			ep = a.Size
		default:
			return false
		}
		return true
	})
	if len(m) == 0 {
		m = layout.Mesh{{Name: "dp", Size: 1}}
	}
	l.mesh = m.String()
	return tp, pp, ep, nil
}
