package state

import (
	"slices"

	"github.com/shoal-ml/shoal/format/optim"
	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/state/layout"
)

// What the formats of DeepSpeed need of the flags. One goroutine runs it, that of the command.

// readGroups reads the file of --groups, if that is given.
func (m *moveFlags) readGroups() (err error) {
	if m.groups != "" {
		_, m.given, err = cli.ReadFile(m.groups, optim.MaxGroupsBytes, optim.ParseGroups)
	}
	return err
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
