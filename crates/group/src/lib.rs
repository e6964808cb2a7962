//! The group communication stack as sans-IO state machines that speak the JGroups 5.5 wire
