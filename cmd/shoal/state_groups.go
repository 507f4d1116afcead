package main

import (
	"fmt"
	"slices"

	"github.com/shoal-ml/shoal/checkpoint"
	"github.com/shoal-ml/shoal/internal/durable"
	"github.com/shoal-ml/shoal/state/format/optim"
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
	return c.Adopt(m.format, given)
}

// takeTP takes the tensor parallel ranks out of the mesh: those of ZeRO share parameters as the checkpoint says, not as a layout does.
func (l *layoutFlags) takeTP() (int, error) {
	m, err := layout.ParseMesh(l.mesh)
	if l.mesh == "" || err != nil {
		return 0, err
	}
	i := slices.IndexFunc(m, func(a layout.Axis) bool { return a.Name == "tp" })
	if i < 0 {
		return 0, nil
	}
	n := m[i].Size
	if m = slices.Delete(m, i, i+1); len(m) == 0 {
		m = layout.Mesh{{Name: "dp", Size: 1}}
	}
	l.mesh = m.String()
	return n, nil
}
