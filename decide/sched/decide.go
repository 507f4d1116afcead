package sched

import "fmt"

// decide has the policy decide. One that fails is replaced by the default for good, and Faults says
// so.
func (m *Machine) decide() {
	m.again = Never
	if fault := m.try(); fault != "" {
		m.replace(fault)
		m.try()
	}
	m.relocate()
}

// try has the policy decide, and returns what was wrong with it; "" = nothing.
func (m *Machine) try() (fault string) {
	defer func() {
		if r := recover(); r != nil {
			fault = fmt.Sprint(r)
		}
	}()
	if m.policy.Order != nil {
		m.decideByOrder()
	} else {
		m.decideByShare()
	}
	return ""
}

// replace puts the default policy in the place of one that has failed.
func (m *Machine) replace(fault string) {
	if m.policy.Name == Default {
		panic("sched: the default policy fails: " + fault)
	}
	m.faults = append(m.faults, fmt.Sprintf("policy %s fails, so %s decides from now on: %s",
		m.policy.Name, Default, fault))
	m.policy, _ = Named(Default)
	m.waiting, m.unkeyed, m.memory = queue{}, nil, nil
	for _, e := range m.list {
		e.heap = -1
		if !e.ended && e.slots == 0 && m.policy.Order != nil {
			m.unkeyed = append(m.unkeyed, e)
		}
	}
}
