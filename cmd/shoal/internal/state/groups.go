package state

import (
	"fmt"
	"slices"

	"github.com/shoal-ml/shoal/checkpoint"
	"github.com/shoal-ml/shoal/format/optim"
	"github.com/shoal-ml/shoal/internal/durable"
	"github.com/shoal-ml/shoal/state/layout"
)

// adopt prepares the optimizer for the format, with the groups that were given.
func (m *moveFlags) adopt(c *checkpoint.Checkpoint) (notes []string, err error) {
	var given []optim.Group
	if m.groups != "" {
		text, err := durable.Read(m.groups, optim.MaxGroupsBytes)
		if err != nil {
			return nil, err
		}
		if given, err = optim.Parse(text); err != nil {
			return nil, fmt.Errorf("%s: %w", m.groups, err)
		}
	}
	return c.PrepareOptimizer(m.format, given)
}

// takeModel takes the tensor and expert parallel ranks and the stages of a pipeline out of the
// mesh: those of ZeRO share parameters as the checkpoint says, not as a layout does.
func (l *layoutFlags) takeModel() (tp, pp, ep int, err error) {
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
