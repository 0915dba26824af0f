//! Socket addresses as the kernel reads and writes them.

use nix::libc;
use std::mem::{size_of, zeroed};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Memory for a socket address of IPv4 or IPv6.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) union Name {
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

/// The size of [`Name`], in the kernel's type.
pub(super) const NAME_BYTES: libc::socklen_t = size_of::<Name>() as libc::socklen_t;

impl Name {
    /// An empty address: all bytes are zero.
    pub(super) fn none() -> Self {
        // SAFETY: all-zero bytes are a valid address of either family.
        unsafe { zeroed() }
    }

    /// Converts an address to the kernel's form. Also returns the number of its bytes.
    pub(super) fn of(address: SocketAddr) -> (Self, libc::socklen_t) {
        let mut name = Self::none();
        let bytes = match address {
            SocketAddr::V4(address) => {
                name.v4 = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: address.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from(*address.ip()).to_be() },
                    sin_zero: [0; 8],
                };
                size_of::<libc::sockaddr_in>()
            }
            SocketAddr::V6(address) => {
                name.v6 = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: address.port().to_be(),
                    sin6_flowinfo: address.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                    sin6_scope_id: address.scope_id(),
                };
                size_of::<libc::sockaddr_in6>()
            }
        };
        (name, bytes as libc::socklen_t)
    }

    /// Converts the address that the kernel wrote into this memory, which was [`none`](Self::none) before. Returns `0.0.0.0:0` if the
    /// kernel wrote no address, or an address of another family.
    pub(super) fn address(&self) -> SocketAddr {
        // SAFETY: all bytes are initialised, and any bytes are a valid sockaddr_in.
        let v4 = unsafe { self.v4 };
        match libc::c_int::from(v4.sin_family) {
            libc::AF_INET => {
                let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
                SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into()
            }
            libc::AF_INET6 => {
                // SAFETY: all bytes are initialised, and any bytes are a valid sockaddr_in6.
                let v6 = unsafe { self.v6 };
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                SocketAddrV6::new(ip, u16::from_be(v6.sin6_port), 0, v6.sin6_scope_id).into()
            }
            _ => SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_comes_out_as_it_went_in() {
        for text in ["10.1.2.3:65535", "[fd00::1:2]:7", "[fe80::1%5]:30001", "[::]:0"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(Name::of(address).0.address(), address);
        }
        assert_eq!(Name::none().address(), "0.0.0.0:0".parse().unwrap());
    }
}
